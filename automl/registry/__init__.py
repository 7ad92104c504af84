"""Models in MLflow's registry: `promotion` registers models, `registered` reads them."""

"""Models in MLflow's registry: `promotion` puts them there, `registered` reads them."""

"""The smallest application that `benchmarks/attacks.py --server` attacks; run as a module, it is served as ours are.

    export PYTHONPATH=$PWD:benchmarks
    python benchmarks/attacks.py --doors '' --connections 200 --server 'attacked_app {port}'

Other servers: `uvicorn --port {port} attacked_app:app`, `granian --interface asgi --port {port} attacked_app:app`,
`hypercorn --bind 127.0.0.1:{port} attacked_app:app`, and
`gunicorn --bind 127.0.0.1:{port} --worker-class uvicorn_worker.UvicornWorker attacked_app:app`.
"""

from __future__ import annotations

import asyncio
import sys

import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from automl.standalone.serving.connections import LimitedServer, allow_many_connections, limits
from automl.standalone.serving.listening import address, listening_socket

app = FastAPI(openapi_url=None)


@app.get("/openapi.json")
async def large() -> Response:
    return Response(b" " * 100_000, media_type="application/json")


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/login")
async def login(request: Request) -> Response:
    try:
        return Response(status_code=401 if await request.body() == b"token=x" else 422)
    except ClientDisconnect:
        return Response(status_code=400)


if __name__ == "__main__":
    listening = listening_socket("127.0.0.1", int(sys.argv[1]))
    allow_many_connections()
    print(address(listening), flush=True)
    asyncio.run(LimitedServer(uvicorn.Config(app, log_config=None, **limits(together=16))).serve([listening]))

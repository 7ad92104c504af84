"""The address of the object store of a test run, chosen before anything is started that inherits the environment.

Whatever runs in the tests, ranks in Ray's processes as well, finds the store there once a test starts it
(`tests.support.object_stores`), and keeps its copies of objects in a folder that ends with the run.
"""

import atexit
import os
import shutil
import socket
import tempfile

SECRET = "an-s3-secret-that-no-message-may-hold"


def claim() -> socket.socket:
    """Bind the address of this process's store, and let every S3 client in it and its children go there."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", 0))
    atexit.register(listening.close)
    copies = tempfile.mkdtemp(prefix="automl-copies-")
    atexit.register(shutil.rmtree, copies, ignore_errors=True)
    os.environ.update(
        AUTOML_CACHE_FOLDER=copies,
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{listening.getsockname()[1]}",
        AWS_ACCESS_KEY_ID="testing",
        AWS_SECRET_ACCESS_KEY=SECRET,
        AWS_DEFAULT_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true",
        AWS_MAX_ATTEMPTS="1",  # s3fs has further attempts of its own
    )
    return listening

"""kombu over py-amqp: AMQPLAIN with a password, EXTERNAL with a certificate, and both refused."""

import os
import ssl

from amqp.exceptions import AccessRefused
from kombu import Connection

HOST = os.environ["AMQP_HOST"]
CERTS = os.environ["CERTS"]


def amqplain(user, password):
    return Connection(
        hostname=HOST, port=int(os.environ["AMQP_PORT"]), userid=user, password=password, login_method="AMQPLAIN"
    )


def external(name):
    context = {
        "ca_certs": f"{CERTS}/ca.pem", "certfile": f"{CERTS}/{name}.pem", "keyfile": f"{CERTS}/{name}.key",
        "cert_reqs": ssl.CERT_REQUIRED, "server_hostname": "localhost",
    }  # fmt: skip
    return Connection(hostname="localhost", port=int(os.environ["AMQPS_PORT"]), ssl=context, login_method="EXTERNAL")


def there_and_back(connection, queue):
    with connection:
        simple = connection.SimpleQueue(queue)
        simple.put({"by": queue})
        message = simple.get(timeout=30)
        assert message.payload == {"by": queue}
        message.ack()
        simple.close()


def opens(connection, queue):
    with connection:
        connection.channel().queue_declare(queue, auto_delete=False)


def refused(connection):
    try:
        connection.connect()
    except AccessRefused:
        pass
    else:
        raise AssertionError("let in")
    finally:
        connection.release()


there_and_back(amqplain(os.environ["AMQP_USER"], os.environ["AMQP_PASSWORD"]), "jobs")
refused(amqplain(os.environ["AMQP_USER"], "wrong"))
refused(amqplain("nobody", "x"))
opens(external("machine"), "m")
refused(external("stranger"))
print("done")

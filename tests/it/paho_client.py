"""One scenario with Paho, as a device would use it: every QoS, retained, will, wildcards, a persistent session.

Exits with 0 when all that was expected came, else says what did not.
"""

import argparse
import queue
import ssl
import sys

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

PATIENCE = 20


class Device:
    """A client whose events can be waited for."""

    def __init__(self, options, name, clean=True, will=None):
        self.version = options.version
        self.options = options
        self.clean = clean
        arguments = {} if self.version == 5 else {"clean_session": clean}
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id=f"paho-{self.version}-{name}", protocol=self.version, **arguments
        )
        if options.ca:
            self.client.tls_set(options.ca, options.cert, options.key, cert_reqs=ssl.CERT_REQUIRED)
        if will:
            self.client.will_set(*will)
        self.events = queue.Queue()
        self.messages = queue.Queue()
        self.client.on_connect = lambda c, u, flags, reason, p: self.events.put(("connect", flags.session_present, reason))
        self.client.on_subscribe = lambda c, u, mid, reasons, p: self.events.put(("subscribe", mid, reasons))
        self.client.on_message = lambda c, u, message: self.messages.put(message)

    def connect(self):
        arguments = {}
        if self.version == 5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 0 if self.clean else 3600
            arguments = {"clean_start": self.clean, "properties": properties}
        self.client.connect("localhost" if self.options.ca else "127.0.0.1", self.options.port, 60, **arguments)
        self.client.loop_start()
        kind, present, reason = self.events.get(timeout=PATIENCE)
        assert kind == "connect" and not reason.is_failure, (kind, reason)
        return present

    def subscribe(self, topic, qos):
        self.client.subscribe(topic, qos)
        kind, _, reasons = self.events.get(timeout=PATIENCE)
        assert kind == "subscribe" and [reason.value for reason in reasons] == [qos], (kind, reasons)

    def publish(self, topic, payload, qos, retain=False):
        self.client.publish(topic, payload, qos, retain).wait_for_publish(PATIENCE)

    def expect(self, topic, payload, qos, retain=False):
        message = self.messages.get(timeout=PATIENCE)
        got = (message.topic, message.payload.decode(), message.qos, bool(message.retain))
        assert got == (topic, payload, qos, retain), f"expected {(topic, payload, qos, retain)}, got {got}"

    def nothing(self):
        assert self.messages.empty(), self.messages.get().topic

    def disconnect(self):
        self.client.disconnect()
        self.client.loop_stop()

    def cut(self):
        """Ends without DISCONNECT."""
        self.client.loop_stop()
        self.client.socket().shutdown(2)
        self.client.socket().close()


def scenario(options):
    prefix = f"{options.prefix}{options.version}/"
    watcher = Device(options, "watcher")
    watcher.connect()
    watcher.subscribe(prefix + "+/value", 2)
    watcher.subscribe(prefix + "will", 1)
    device = Device(options, "device", will=(prefix + "will", "gone", 1, False))
    device.connect()
    for qos in range(3):
        device.publish(f"{prefix}room-{qos}/value", f"at {qos}", qos)
        watcher.expect(f"{prefix}room-{qos}/value", f"at {qos}", qos)
    device.publish(prefix + "state", "kept", 1, retain=True)
    late = Device(options, "late")
    late.connect()
    late.subscribe(prefix + "#", 2)
    late.expect(prefix + "state", "kept", 1, retain=True)
    late.publish(prefix + "state", "", 1, retain=True)
    late.disconnect()
    device.cut()
    watcher.expect(prefix + "will", "gone", 1)

    sleeper = Device(options, "sleeper", clean=False)
    assert not sleeper.connect()
    sleeper.subscribe(prefix + "queue", 2)
    sleeper.disconnect()
    for n in range(20):
        watcher.publish(prefix + "queue", str(n), 1 + n // 10)
    sleeper = Device(options, "sleeper", clean=False)
    assert sleeper.connect(), "a session is present"
    for n in range(20):
        sleeper.expect(prefix + "queue", str(n), 1 + n // 10)
    sleeper.nothing()
    sleeper.disconnect()
    sleeper = Device(options, "sleeper", clean=True)
    assert not sleeper.connect()
    sleeper.disconnect()
    watcher.nothing()
    watcher.disconnect()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--version", type=int, required=True, choices=[4, 5])
    parser.add_argument("--prefix", default="paho/")
    for name in ["--ca", "--cert", "--key"]:
        parser.add_argument(name)
    try:
        scenario(parser.parse_args())
    except queue.Empty:
        print("what was expected did not come", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()

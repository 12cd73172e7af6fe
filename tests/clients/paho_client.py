"""One scenario with Paho, as a device would use it: every QoS, retained, will, a persistent session; what version 5 adds.

Exits with 0 when all that was expected came, else says what did not.
"""

import argparse
import queue
import ssl

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
        self.client.on_unsubscribe = lambda c, u, mid, reasons, p: self.events.put(("unsubscribe", mid, reasons))
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

    def unsubscribe(self, topic):
        self.client.unsubscribe(topic)
        kind, *_ = self.events.get(timeout=PATIENCE)
        assert kind == "unsubscribe", kind

    def publish(self, topic, payload, qos, retain=False, properties=None):
        self.client.publish(topic, payload, qos, retain, properties).wait_for_publish(PATIENCE)

    def expect(self, topic, payload, qos, retain=False):
        message = self.messages.get(timeout=PATIENCE)
        got = (message.topic, message.payload.decode(), message.qos, bool(message.retain))
        assert got == (topic, payload, qos, retain), f"expected {(topic, payload, qos, retain)}, got {got}"[:1000]
        return message

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


def every_qos(options, prefix, watcher, device):
    watcher.subscribe(prefix + "+/value", 2)
    for qos in range(3):
        device.publish(f"{prefix}room-{qos}/value", f"at {qos}", qos)
        watcher.expect(f"{prefix}room-{qos}/value", f"at {qos}", qos)
    device.subscribe(prefix + "order", 1)
    for qos in range(3):
        watcher.publish(prefix + "order", f"at {qos}", qos)
        device.expect(prefix + "order", f"at {qos}", min(qos, 1))


def retained(options, prefix, watcher, device):
    device.publish(prefix + "state", "kept", 1, retain=True)
    late = Device(options, "late")
    late.connect()
    late.subscribe(prefix + "state", 2)
    late.expect(prefix + "state", "kept", 1, retain=True)
    late.publish(prefix + "state", "", 1, retain=True)
    late.expect(prefix + "state", "", 1)
    late.disconnect()


def will(options, prefix, watcher, device):
    watcher.subscribe(prefix + "will", 1)
    mortal = Device(options, "mortal", will=(prefix + "will", "gone", 1, False))
    mortal.connect()
    mortal.cut()
    watcher.expect(prefix + "will", "gone", 1)


def session(options, prefix, watcher, device):
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


def large(options, prefix, watcher, device):
    watcher.subscribe(prefix + "large", 2)
    payload = "".join(chr(33 + n * 7 % 90) for n in range(1_500_000))
    for qos in range(3):
        device.publish(prefix + "large", payload, qos)
        watcher.expect(prefix + "large", payload, qos)


def unsubscribed(options, prefix, watcher, device):
    watcher.subscribe(prefix + "left", 1)
    watcher.subscribe(prefix + "stayed", 1)
    watcher.unsubscribe(prefix + "left")
    device.publish(prefix + "left", "nobody", 1)
    device.publish(prefix + "stayed", "somebody", 1)
    watcher.expect(prefix + "stayed", "somebody", 1)


def properties(options, prefix, watcher, device):
    sent = Properties(PacketTypes.PUBLISH)
    sent.UserProperty = [("unit", "C"), ("room", "attic"), ("unit", "F")]
    sent.ContentType = "text/plain"
    sent.PayloadFormatIndicator = 1
    sent.ResponseTopic = prefix + "answer"
    sent.CorrelationData = bytes(range(256))
    sent.MessageExpiryInterval = 100
    sent.TopicAlias = 1
    watcher.subscribe(prefix + "rich", 1)
    # The first sets the alias, the second stands on it.
    for topic in [prefix + "rich", ""]:
        device.publish(topic, "21.5", 1, properties=sent)
        got = watcher.expect(prefix + "rich", "21.5", 1).properties
        for name in ["UserProperty", "ContentType", "PayloadFormatIndicator", "ResponseTopic", "CorrelationData"]:
            assert getattr(got, name) == getattr(sent, name), (name, getattr(got, name))
        assert 90 <= got.MessageExpiryInterval <= 100, got.MessageExpiryInterval


def request_response(options, prefix, watcher, device):
    device.subscribe(prefix + "request", 1)
    watcher.subscribe(prefix + "response/mine", 1)
    asked = Properties(PacketTypes.PUBLISH)
    asked.ResponseTopic = prefix + "response/mine"
    asked.CorrelationData = b"\x00\xff7"
    watcher.publish(prefix + "request", "6 x 7", 1, properties=asked)
    request = device.expect(prefix + "request", "6 x 7", 1)
    answered = Properties(PacketTypes.PUBLISH)
    answered.CorrelationData = request.properties.CorrelationData
    device.publish(request.properties.ResponseTopic, "42", 1, properties=answered)
    response = watcher.expect(prefix + "response/mine", "42", 1)
    assert response.properties.CorrelationData == asked.CorrelationData


def scenario(options):
    steps = [every_qos, retained, will, session, large, unsubscribed]
    if options.version == 5:
        steps += [properties, request_response]
    watcher, device = Device(options, "watcher"), Device(options, "device")
    watcher.connect()
    device.connect()
    for step in steps:
        try:
            step(options, f"{options.prefix}{options.version}/{step.__name__}/", watcher, device)
        except Exception as error:
            raise AssertionError(f"{step.__name__} failed: {error!r}") from error
        watcher.nothing()
        device.nothing()
    watcher.disconnect()
    device.disconnect()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--version", type=int, required=True, choices=[4, 5])
    parser.add_argument("--prefix", default="paho/")
    for name in ["--ca", "--cert", "--key"]:
        parser.add_argument(name)
    scenario(parser.parse_args())


if __name__ == "__main__":
    main()

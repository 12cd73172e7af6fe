// One scenario with mqtt.js, as an application would use it: every QoS, retained, will, a persistent session; what version 5 adds.
//
// Exits with 0 when all that was expected came, else says what did not. PINNACE_TEST_NODE_MODULES names the folder that mqtt.js is in.

const assert = require("node:assert");
const path = require("node:path");

const mqtt = require(path.join(process.env.PINNACE_TEST_NODE_MODULES, "mqtt"));

const [port, version] = process.argv.slice(2).map(Number);
const PATIENCE = 20_000;

/** A client whose messages can be waited for. */
class Device {
  static async connect(name, options = {}) {
    const { clean = true, will } = options;
    const device = new Device();
    device.messages = [];
    device.waiting = [];
    device.client = mqtt.connect({
      host: "127.0.0.1",
      port,
      protocolVersion: version,
      clientId: `mqttjs-${version}-${name}`,
      clean,
      will,
      reconnectPeriod: 0,
      connectTimeout: PATIENCE,
      ...(version === 5 && {
        autoAssignTopicAlias: true,
        properties: { sessionExpiryInterval: clean ? 0 : 3600 },
      }),
    });
    device.client.on("message", (topic, payload, packet) => {
      const waiting = device.waiting.shift();
      if (waiting) waiting(packet);
      else device.messages.push(packet);
    });
    const connected = new Promise((resolve, reject) => {
      device.client.once("connect", resolve);
      device.client.once("error", reject);
      device.client.once("close", () => reject(new Error(`${name} was closed`)));
    });
    device.present = (await within(`CONNACK for ${name}`, connected)).sessionPresent;
    return device;
  }

  async subscribe(topic, qos) {
    const granted = await within(`SUBACK for ${topic}`, this.client.subscribeAsync(topic, { qos }));
    assert.deepStrictEqual(granted.map((one) => one.qos), [qos]);
  }

  unsubscribe(topic) {
    return within(`UNSUBACK for ${topic}`, this.client.unsubscribeAsync(topic));
  }

  publish(topic, payload, qos, options = {}) {
    return within(`the end of PUBLISH to ${topic}`, this.client.publishAsync(topic, payload, { qos, ...options }));
  }

  async expect(topic, payload, qos, retain = false) {
    const next = this.messages.shift() ?? new Promise((resolve) => this.waiting.push(resolve));
    const packet = await within(`a message of ${topic}`, next);
    assert.deepStrictEqual([packet.topic, packet.qos, packet.retain], [topic, qos, retain]);
    assert.ok(packet.payload.equals(Buffer.from(payload)), `${topic}: ${packet.payload.subarray(0, 100)}`);
    return packet;
  }

  nothing() {
    assert.deepStrictEqual(this.messages, []);
  }

  disconnect() {
    return within("the end of a connection", this.client.endAsync());
  }

  /** Ends without DISCONNECT. */
  cut() {
    this.client.stream.destroy();
  }
}

function within(what, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not within ${PATIENCE} ms: ${what}`)), PATIENCE);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function everyQos(prefix, watcher, device) {
  await watcher.subscribe(`${prefix}+/value`, 2);
  await device.subscribe(`${prefix}order`, 1);
  for (const qos of [0, 1, 2]) {
    await device.publish(`${prefix}room-${qos}/value`, `at ${qos}`, qos);
    await watcher.expect(`${prefix}room-${qos}/value`, `at ${qos}`, qos);
    await watcher.publish(`${prefix}order`, `at ${qos}`, qos);
    await device.expect(`${prefix}order`, `at ${qos}`, Math.min(qos, 1));
  }
}

async function retained(prefix, watcher, device) {
  await device.publish(`${prefix}state`, "kept", 1, { retain: true });
  const late = await Device.connect("late");
  await late.subscribe(`${prefix}state`, 2);
  await late.expect(`${prefix}state`, "kept", 1, true);
  await late.publish(`${prefix}state`, "", 1, { retain: true });
  await late.expect(`${prefix}state`, "", 1);
  await late.disconnect();
}

async function will(prefix, watcher) {
  await watcher.subscribe(`${prefix}will`, 1);
  const mortal = await Device.connect("mortal", { will: { topic: `${prefix}will`, payload: "gone", qos: 1 } });
  mortal.cut();
  await watcher.expect(`${prefix}will`, "gone", 1);
}

async function session(prefix, watcher) {
  let sleeper = await Device.connect("sleeper", { clean: false });
  assert.ok(!sleeper.present);
  await sleeper.subscribe(`${prefix}queue`, 2);
  await sleeper.disconnect();
  for (let n = 0; n < 20; n++) await watcher.publish(`${prefix}queue`, `${n}`, n < 10 ? 1 : 2);
  sleeper = await Device.connect("sleeper", { clean: false });
  assert.ok(sleeper.present, "a session is present");
  for (let n = 0; n < 20; n++) await sleeper.expect(`${prefix}queue`, `${n}`, n < 10 ? 1 : 2);
  sleeper.nothing();
  await sleeper.disconnect();
  sleeper = await Device.connect("sleeper");
  assert.ok(!sleeper.present);
  await sleeper.disconnect();
}

async function large(prefix, watcher, device) {
  await watcher.subscribe(`${prefix}large`, 2);
  const payload = Buffer.from({ length: 1_500_000 }, (_, n) => (n * 7) >> 3);
  for (const qos of [0, 1, 2]) {
    await device.publish(`${prefix}large`, payload, qos);
    await watcher.expect(`${prefix}large`, payload, qos);
  }
}

async function unsubscribed(prefix, watcher, device) {
  await watcher.subscribe(`${prefix}left`, 1);
  await watcher.subscribe(`${prefix}stayed`, 1);
  await watcher.unsubscribe(`${prefix}left`);
  await device.publish(`${prefix}left`, "nobody", 1);
  await device.publish(`${prefix}stayed`, "somebody", 1);
  await watcher.expect(`${prefix}stayed`, "somebody", 1);
}

async function properties(prefix, watcher, device) {
  const sent = {
    userProperties: { unit: ["C", "F"], room: "attic" },
    contentType: "text/plain",
    payloadFormatIndicator: true,
    responseTopic: `${prefix}answer`,
    correlationData: Buffer.from({ length: 256 }, (_, n) => n),
  };
  await watcher.subscribe(`${prefix}rich`, 1);
  // The second stands on the alias that the client gave the first.
  for (let n = 0; n < 2; n++) {
    await device.publish(`${prefix}rich`, "21.5", 1, { properties: { ...sent, messageExpiryInterval: 100 } });
    const { messageExpiryInterval, ...got } = (await watcher.expect(`${prefix}rich`, "21.5", 1)).properties;
    assert.deepStrictEqual({ ...got, userProperties: { ...got.userProperties } }, sent);
    assert.ok(messageExpiryInterval > 90 && messageExpiryInterval <= 100, `${messageExpiryInterval}`);
  }
}

async function requestResponse(prefix, watcher, device) {
  await device.subscribe(`${prefix}request`, 1);
  await watcher.subscribe(`${prefix}response/mine`, 1);
  const correlationData = Buffer.from([0, 255, 7]);
  const asked = { properties: { responseTopic: `${prefix}response/mine`, correlationData } };
  await watcher.publish(`${prefix}request`, "6 x 7", 1, asked);
  const request = (await device.expect(`${prefix}request`, "6 x 7", 1)).properties;
  const answered = { properties: { correlationData: request.correlationData } };
  await device.publish(request.responseTopic, "42", 1, answered);
  const response = await watcher.expect(`${prefix}response/mine`, "42", 1);
  assert.deepStrictEqual(response.properties.correlationData, correlationData);
}

async function main() {
  const steps = [everyQos, retained, will, session, large, unsubscribed];
  if (version === 5) steps.push(properties, requestResponse);
  const watcher = await Device.connect("watcher");
  const device = await Device.connect("device");
  for (const step of steps) {
    try {
      await step(`mqttjs/${version}/${step.name}/`, watcher, device);
    } catch (error) {
      throw new Error(`${step.name} failed`, { cause: error });
    }
    watcher.nothing();
    device.nothing();
  }
  await watcher.disconnect();
  await device.disconnect();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

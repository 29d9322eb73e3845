// The official JavaScript client on topics, subscriptions and rules. One check per line: "ok <name>" or "not ok <name>: why".
//
//   BUS=<connection string> NODE_EXTRA_CA_CERTS=<ca file> [NODE_MODULES_HOME=<dir>] node topics.mjs
//
// The exit code is the number of failed checks.

import assert from "node:assert/strict";
import { runChecks, sdk } from "./checks.mjs";

const { ServiceBusAdministrationClient, ServiceBusClient, isServiceBusError } = sdk;

const retryOptions = { maxRetries: 0, timeoutInMs: 10_000 };
const client = new ServiceBusClient(process.env.BUS, { retryOptions });
const admin = new ServiceBusAdministrationClient(process.env.BUS, { retryOptions: { maxRetries: 0 } });
const run = Date.now().toString(36);
let count = 0;
const fresh = (stem) => `${stem}-${run}-${(count += 1)}`;
const bodies = (messages) => messages.map((message) => message.body);

async function makeTopic(subscriptions, settings = {}) {
  const topic = fresh("topic");
  await admin.createTopic(topic, settings);
  for (const [name, options] of Object.entries(subscriptions)) await admin.createSubscription(topic, name, options);
  return topic;
}

async function all(pages) {
  const found = [];
  for await (const item of pages) found.push(item);
  return found;
}

async function publish(path, ...messages) {
  const sender = client.createSender(path);
  for (const message of messages) await sender.sendMessages(message);
  await sender.close();
}

async function take(receiver, amount) {
  const messages = [];
  const giveUpAt = Date.now() + 10_000;
  while (messages.length < amount && Date.now() < giveUpAt) {
    messages.push(...(await receiver.receiveMessages(amount - messages.length, { maxWaitTimeInMs: 5_000 })));
  }
  assert.equal(messages.length, amount, `received ${JSON.stringify(bodies(messages))}`);
  return messages;
}

async function consume(topic, subscription, amount, options = {}) {
  const receiver = client.createReceiver(topic, subscription, { receiveMode: "receiveAndDelete", ...options });
  const messages = await take(receiver, amount);
  assert.deepEqual(await receiver.peekMessages(10), []);
  await receiver.close();
  return messages;
}

async function peek(topic, subscription, options) {
  const receiver = client.createReceiver(topic, subscription, options);
  const seen = await receiver.peekMessages(100);
  await receiver.close();
  return bodies(seen);
}

async function refused(code, call) {
  await assert.rejects(call, (error) => {
    assert.ok(isServiceBusError(error), `${error.name}: ${error.message}`);
    assert.equal(error.code, code, error.message);
    return true;
  });
}

const checks = {
  "every subscription gets its own copy": async () => {
    const topic = await makeTopic({ one: {}, two: {} });
    await publish(topic, { body: "a", subject: "s" }, [{ body: "b" }, { body: "c" }]);
    const first = await consume(topic, "one", 3);
    assert.deepEqual(bodies(first), ["a", "b", "c"]);
    assert.deepEqual(first.map((m) => m.sequenceNumber.toNumber()), [1, 2, 3]);
    assert.deepEqual(first.map((m) => m.enqueuedSequenceNumber), [1, 2, 3]);
    assert.deepEqual(await peek(topic, "two"), ["a", "b", "c"]);
  },

  "a subscription settles like a queue and has a dead-letter queue": async () => {
    const topic = await makeTopic({ one: { maxDeliveryCount: 1 } });
    await publish(topic, { body: "dead" }, { body: "defer" }, { body: "abandon" }, { body: "done" });
    const receiver = client.createReceiver(topic, "one");
    const [dead, defer, abandon, done] = await take(receiver, 4);
    await receiver.deadLetterMessage(dead, { deadLetterReason: "r" });
    await receiver.deferMessage(defer);
    await receiver.abandonMessage(abandon);
    await receiver.completeMessage(done);
    const [deferred] = await receiver.receiveDeferredMessages(defer.sequenceNumber);
    await receiver.completeMessage(deferred);
    await receiver.close();
    const graves = await consume(topic, "one", 2, { subQueueType: "deadLetter" });
    assert.deepEqual(graves.map((m) => [m.body, m.deadLetterReason]), [
      ["dead", "r"], ["abandon", "MaxDeliveryCountExceeded"],
    ]);
    assert.deepEqual(await peek(topic, "one"), []);
  },

  // enumerate-rules, with $Default from the start
  "the rule manager lists rules": async () => {
    const topic = await makeTopic({ one: {} });
    const rules = client.createRuleManager(topic, "one");
    const [first] = await all(rules.listRules());
    assert.equal(first.name, "$Default");
    assert.deepEqual(first.filter, { sqlExpression: "1=1" });
    await rules.deleteRule("$Default");
    // Where there is no page at all this client yields one undefined.
    assert.deepEqual((await all(rules.listRules())).filter(Boolean), []);
  },

  // add-rule with every kind of filter and an action; what is listed is what was added
  "the rule manager adds rules and reads them back": async () => {
    const topic = await makeTopic({ one: {} });
    const rules = client.createRuleManager(topic, "one");
    await rules.createRule("sql", { sqlExpression: "size > 5" }, { sqlExpression: "SET marked = 'yes'" });
    const same = { correlationId: "c", subject: "l", applicationProperties: { colour: "red", n: 3 } };
    await rules.createRule("same", same);
    const found = Object.fromEntries((await all(rules.listRules())).map((rule) => [rule.name, rule]));
    assert.deepEqual(Object.keys(found).sort(), ["$Default", "same", "sql"]);
    assert.deepEqual(found.sql.filter, { sqlExpression: "size > 5" });
    assert.deepEqual(found.sql.action, { sqlExpression: "SET marked = 'yes'" });
    for (const [name, value] of Object.entries(same)) assert.deepEqual(found.same.filter[name], value, name);
    // The administration client sees the same rules.
    assert.deepEqual((await all(admin.listRules(topic, "one"))).map(({ name }) => name), ["$Default", "same", "sql"]);
  },

  // rules made over AMQP choose and change messages
  "rules choose and act": async () => {
    const topic = await makeTopic({ one: {}, two: {} });
    const rules = client.createRuleManager(topic, "one");
    await rules.deleteRule("$Default");
    await rules.createRule("large", { sqlExpression: "size > 5" }, { sqlExpression: "SET marked = 'yes'" });
    await rules.createRule("red", { applicationProperties: { colour: "red" } });
    await publish(
      topic,
      { body: "small", applicationProperties: { size: 1, colour: "blue" } },
      { body: "large", applicationProperties: { size: 9, colour: "blue" } },
      { body: "both", applicationProperties: { size: 8, colour: "red" } },
    );
    const found = (await consume(topic, "one", 3)).map((m) => [m.body, m.applicationProperties.RuleName ?? null]);
    assert.deepEqual(found.sort(), [["both", "large"], ["both", null], ["large", "large"]].sort());
    assert.deepEqual(await peek(topic, "two"), ["small", "large", "both"]);
  },

  // many rules come in pages
  "the rule manager pages": async () => {
    const topic = await makeTopic({ one: {} });
    const rules = client.createRuleManager(topic, "one");
    for (let i = 0; i < 25; i += 1) await rules.createRule(`r${i}`, { subject: `${i}` });
    const pages = await all(rules.listRules().byPage({ maxPageSize: 10 }));
    assert.deepEqual(pages.map((page) => page.length), [10, 10, 6]);
    assert.equal(new Set(pages.flat().map(({ name }) => name)).size, 26);
  },

  "rule refusals have their codes": async () => {
    const topic = await makeTopic({ one: {} });
    const rules = client.createRuleManager(topic, "one");
    await assert.rejects(() => rules.createRule("$Default", { subject: "x" }), { code: "MessagingEntityAlreadyExists" });
    await refused("MessagingEntityNotFound", () => rules.deleteRule("missing"));
    await assert.rejects(() => rules.createRule("bad", { sqlExpression: "a = (" }));
    assert.deepEqual((await all(rules.listRules())).map(({ name }) => name), ["$Default"]);
  },

  "scheduled messages wait at the topic": async () => {
    const topic = await makeTopic({ one: {} });
    const sender = client.createSender(topic);
    const due = new Date(Date.now() + 1_000);
    const [gone] = await sender.scheduleMessages([{ body: "gone" }, { body: "kept" }], due);
    assert.equal((await admin.getTopicRuntimeProperties(topic)).scheduledMessageCount, 2);
    await sender.cancelScheduledMessages(gone);
    assert.deepEqual(bodies(await consume(topic, "one", 1)), ["kept"]);
    assert.ok(Date.now() >= due);
    await sender.close();
  },

  "sessions on a subscription": async () => {
    const topic = await makeTopic({ one: { requiresSession: true } });
    await publish(topic, { body: "x1", sessionId: "x" }, { body: "y1", sessionId: "y" }, { body: "x2", sessionId: "x" });
    const session = await client.acceptSession(topic, "one", "x");
    assert.deepEqual(bodies(await take(session, 2)), ["x1", "x2"]);
    await session.setSessionState(Buffer.from("state"));
    const next = await client.acceptNextSession(topic, "one");
    assert.equal(next.sessionId, "y");
    await next.close();
    await session.close();
    await publish(topic, { body: "none" });
    const [buried] = await consume(topic, "one", 1, { subQueueType: "deadLetter" });
    assert.deepEqual([buried.body, buried.deadLetterReason], ["none", "Session id is null."]);
  },

  "forwarding, and the transfer dead-letter queue": async () => {
    const target = fresh("target");
    await admin.createQueue(target);
    const topic = await makeTopic({ onward: { forwardTo: target } });
    await publish(topic, { body: "moved", messageId: "id" });
    const receiver = client.createReceiver(target, { receiveMode: "receiveAndDelete" });
    const [moved] = await take(receiver, 1);
    assert.deepEqual([moved.body, moved.messageId], ["moved", "id"]);
    await receiver.close();
    await admin.deleteQueue(target);
    await publish(topic, { body: "lost" });
    const [lost] = await consume(topic, "onward", 1, { subQueueType: "transferDeadLetter" });
    assert.equal(lost.body, "lost");
    assert.ok(lost.deadLetterReason);
  },

  "status changes reach attached clients": async () => {
    const topic = await makeTopic({ one: {} });
    const sender = client.createSender(topic);
    await sender.sendMessages({ body: "a" });
    const properties = await admin.getTopic(topic);
    await admin.updateTopic({ ...properties, status: "SendDisabled" });
    await refused("MessagingEntityDisabled", () => sender.sendMessages({ body: "b" }));
    await admin.updateTopic({ ...properties, status: "Active" });
    await sender.sendMessages({ body: "c" });
    await sender.close();
    assert.deepEqual(bodies(await consume(topic, "one", 2)), ["a", "c"]);
    await admin.deleteTopic(topic);
    await refused("MessagingEntityNotFound", () => publish(topic, { body: "d" }));
  },
};

const failed = await runChecks(checks);
await client.close();
process.exit(failed);

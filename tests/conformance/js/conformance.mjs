// The official JavaScript client against a broker. One check per line of output: "ok <name>" or "not ok <name>: why".
//
//   BUS=<connection string> BUS_SIGNATURE=<the same with a SharedAccessSignature> QUEUE=<queue> SESSION_QUEUE=<queue> [BUS_WSS=1] node conformance.mjs
//
// The exit code is the number of failed checks.

import assert from "node:assert/strict";
import { require, runChecks, sdk } from "./checks.mjs";

const { ServiceBusClient, isServiceBusError } = sdk;

const queue = process.env.QUEUE;
const sessionQueue = process.env.SESSION_QUEUE;
const retryOptions = { maxRetries: 0, timeoutInMs: 10_000 };
const client = new ServiceBusClient(process.env.BUS, { retryOptions });
const bodies = (messages) => messages.map((message) => message.body);
const later = () => new Date(Date.now() + 3_600_000);

async function take(receiver, count) {
  const messages = [];
  const giveUpAt = Date.now() + 10_000;
  while (messages.length < count && Date.now() < giveUpAt) {
    messages.push(...(await receiver.receiveMessages(count - messages.length, { maxWaitTimeInMs: 5_000 })));
  }
  assert.equal(messages.length, count, `received ${JSON.stringify(bodies(messages))}`);
  return messages;
}

async function send(path, ...messages) {
  const sender = client.createSender(path);
  for (const message of messages) await sender.sendMessages(message);
  await sender.close();
}

async function peekAll(path, options) {
  const receiver = client.createReceiver(path, options);
  const seen = await receiver.peekMessages(100);
  await receiver.close();
  return seen;
}

async function refused(code, call) {
  await assert.rejects(call, (error) => {
    assert.ok(isServiceBusError(error), `${error.name}: ${error.message}`);
    assert.equal(error.code, code, error.message);
    return true;
  });
}

const checks = {
  "a message keeps its properties": async () => {
    const sent = {
      body: { deep: [1, "two", null] }, messageId: "id", subject: "subject", contentType: "application/json",
      correlationId: "correlation", to: "to", replyTo: "reply", replyToSessionId: "reply-session",
      timeToLive: 60_000, applicationProperties: { text: "t", number: 7, half: 2.5, yes: true },
    };
    await send(queue, sent);
    const receiver = client.createReceiver(queue);
    const [message] = await take(receiver, 1);
    for (const name of Object.keys(sent)) assert.deepEqual(message[name], sent[name], name);
    assert.equal(message.deliveryCount, 0);
    assert.equal(message.state, "active");
    assert.ok(message.lockedUntilUtc > new Date());
    assert.ok(Math.abs(message.enqueuedTimeUtc - Date.now()) < 10_000);
    await receiver.completeMessage(message);
    await receiver.close();
    assert.deepEqual(await peekAll(queue), []);
  },

  // the two-step settlement with all four outcomes
  "complete, abandon, defer and dead-letter": async () => {
    await send(queue, ...["complete", "abandon", "defer", "dead"].map((body) => ({ body })));
    const receiver = client.createReceiver(queue);
    const [complete, abandon, defer, dead] = await take(receiver, 4);
    await receiver.completeMessage(complete);
    await receiver.abandonMessage(abandon, { changed: "by abandon" });
    await receiver.deferMessage(defer, { changed: "by defer" });
    await receiver.deadLetterMessage(dead, { deadLetterReason: "r", deadLetterErrorDescription: "d", extra: 1 });

    const [again] = await take(receiver, 1);
    assert.deepEqual([again.body, again.deliveryCount], ["abandon", 1]);
    assert.equal(again.applicationProperties.changed, "by abandon");
    await receiver.completeMessage(again);

    const [deferred] = await receiver.receiveDeferredMessages(defer.sequenceNumber);
    assert.deepEqual([deferred.body, deferred.state], ["defer", "deferred"]);
    assert.equal(deferred.applicationProperties.changed, "by defer");
    await receiver.completeMessage(deferred);
    await receiver.close();

    const graves = client.createReceiver(queue, { subQueueType: "deadLetter" });
    const [buried] = await take(graves, 1);
    assert.deepEqual([buried.body, buried.deadLetterReason, buried.deadLetterErrorDescription], ["dead", "r", "d"]);
    assert.equal(buried.applicationProperties.extra, 1);
    await graves.completeMessage(buried);
    await graves.close();
    assert.deepEqual(await peekAll(queue), []);
  },

  // the batch limit is the link's max-message-size
  "a batch": async () => {
    const sender = client.createSender(queue);
    const batch = await sender.createMessageBatch();
    assert.equal(batch.maxSizeInBytes, 262_144);
    for (let i = 0; i < 50; i += 1) assert.ok(batch.tryAddMessage({ body: i }));
    await sender.sendMessages(batch);
    await sender.sendMessages([{ body: 50 }, { body: 51 }]);
    await sender.close();
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await take(receiver, 52)), [...Array(52).keys()]);
    await receiver.close();
  },

  // the remaining credit is drained and answered within 200 ms, so the receiver stays usable
  "a receive that asks for more than there is": async () => {
    const receiver = client.createReceiver(queue);
    for (let round = 0; round < 3; round += 1) {
      await send(queue, { body: round });
      const [message] = await receiver.receiveMessages(20, { maxWaitTimeInMs: 3_000 });
      assert.equal(message.body, round);
      await receiver.completeMessage(message);
    }
    assert.deepEqual(await receiver.receiveMessages(5, { maxWaitTimeInMs: 300 }), []);
    await receiver.close();
  },

  // subscribe keeps maxConcurrentCalls credits
  "subscribe": async () => {
    await send(queue, Array.from({ length: 30 }, (_, i) => ({ body: i })));
    const receiver = client.createReceiver(queue);
    const seen = [];
    await new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error(`only ${seen.length} came`)), 10_000).unref();
      receiver.subscribe(
        {
          processMessage: async (message) => { if (seen.push(message.body) === 30) resolve(); },
          processError: async ({ error }) => reject(error),
        },
        { maxConcurrentCalls: 4 },
      );
    });
    await receiver.close();
    assert.deepEqual(seen.sort((a, b) => a - b), [...Array(30).keys()]);
  },

  "peek": async () => {
    await send(queue, [{ body: "a" }, { body: "b" }, { body: "c" }]);
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    const seen = await receiver.peekMessages(2);
    assert.deepEqual(bodies(seen), ["a", "b"]);
    assert.deepEqual(bodies(await receiver.peekMessages(5)), ["c"]);
    const from = await receiver.peekMessages(5, { fromSequenceNumber: seen[1].sequenceNumber });
    assert.deepEqual(bodies(from), ["b", "c"]);
    await take(receiver, 3);
    assert.deepEqual(await receiver.peekMessages(1), []);
    await receiver.close();
  },

  "schedule and cancel": async () => {
    const sender = client.createSender(queue);
    const [gone] = await sender.scheduleMessages([{ body: "gone" }], later());
    const [soon] = await sender.scheduleMessages([{ body: "soon" }], new Date(Date.now() + 700));
    assert.deepEqual((await peekAll(queue)).map((m) => m.state), ["scheduled", "scheduled"]);
    await sender.cancelScheduledMessages(gone);
    await sender.close();
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    const [message] = await take(receiver, 1);
    assert.equal(message.body, "soon");
    assert.ok(message.sequenceNumber.greaterThan(soon));
    await receiver.close();
    assert.deepEqual(await peekAll(queue), []);
  },

  "renew a message lock": async () => {
    await send(queue, { body: "x" });
    const receiver = client.createReceiver(queue);
    const [message] = await take(receiver, 1);
    const before = message.lockedUntilUtc;
    await new Promise((resolve) => setTimeout(resolve, 30));
    assert.ok((await receiver.renewMessageLock(message)) > before);
    await receiver.completeMessage(message);
    await receiver.close();
  },

  "sessions with state": async () => {
    await send(sessionQueue, { body: "1", sessionId: "s" }, { body: "2", sessionId: "s" });
    const session = await client.acceptSession(sessionQueue, "s");
    assert.equal(session.sessionId, "s");
    assert.equal(await session.getSessionState(), null);
    await session.setSessionState(Buffer.from("state"));
    const before = session.sessionLockedUntilUtc;
    await new Promise((resolve) => setTimeout(resolve, 30));
    assert.ok((await session.renewSessionLock()) > before);
    await refused("SessionCannotBeLocked", () => client.acceptSession(sessionQueue, "s"));
    const messages = await take(session, 2);
    assert.deepEqual(bodies(messages), ["1", "2"]);
    await session.completeMessage(messages[0]);
    await session.deferMessage(messages[1]);
    const [deferred] = await session.receiveDeferredMessages(messages[1].sequenceNumber);
    await session.completeMessage(deferred);
    await session.close();

    await send(sessionQueue, { body: "3", sessionId: "s" });
    const next = await client.acceptNextSession(sessionQueue);
    assert.equal(next.sessionId, "s");
    assert.equal(String(await next.getSessionState()), "state");
    await next.setSessionState(null);
    await next.completeMessage((await take(next, 1))[0]);
    await next.close();
  },

  // the time limit of the attach comes from the retry timeout
  "no session is available": async () => {
    const hasty = new ServiceBusClient(process.env.BUS, { retryOptions: { maxRetries: 0, timeoutInMs: 1_500 } });
    await refused("ServiceTimeout", () => hasty.acceptNextSession(sessionQueue));
    await hasty.close();
  },

  "refusals have their codes": async () => {
    await refused("MessagingEntityNotFound", () => send("no-such-queue", { body: "x" }));
    await refused("MessageSizeExceeded", () => send(queue, { body: Buffer.alloc(257 * 1024) }));
    const receiver = client.createReceiver(queue);
    await refused("MessageNotFound", async () => {
      const found = await receiver.receiveDeferredMessages(require("long").fromNumber(987_654));
      assert.fail(`found ${found.length}`);
    });
    await receiver.close();
  },

  "a wrong key is unauthorized": async () => {
    const text = process.env.BUS.replace(/SharedAccessKey=[^;]*/, "SharedAccessKey=d3Jvbmc=");
    const stranger = new ServiceBusClient(text, { retryOptions });
    await refused("UnauthorizedAccess", () => stranger.createSender(queue).sendMessages({ body: "x" }));
    await stranger.close();
  },

  // settled through the management link after the receiver link is gone
  "a message is settled after its receiver has closed": async () => {
    await send(queue, { body: "x" });
    const first = client.createReceiver(queue);
    const [message] = await take(first, 1);
    await first.close();
    const second = client.createReceiver(queue);
    await second.completeMessage(message);
    await second.close();
    assert.deepEqual(await peekAll(queue), []);
  },

  // large messages in both directions
  "a large message": async () => {
    const body = Buffer.alloc(200 * 1024, "x");
    await send(queue, { body });
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    const [message] = await take(receiver, 1);
    assert.equal(Buffer.compare(message.body, body), 0);
    await receiver.close();
  },

  // with a signature the client opens AMQP without SASL and puts its token on $cbs
  "a signature in the connection string": async () => {
    const signed = new ServiceBusClient(process.env.BUS_SIGNATURE, { retryOptions });
    const sender = signed.createSender(queue);
    await sender.sendMessages({ body: "signed" });
    const receiver = signed.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await take(receiver, 1)), ["signed"]);
    await signed.close();
  },
};

const failed = await runChecks(checks);
await client.close();
process.exit(failed);

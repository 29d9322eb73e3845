// The official JavaScript administration client against a broker. One check per line: "ok <name>" or "not ok <name>: why".
//
//   BUS=<connection string> NODE_EXTRA_CA_CERTS=<ca file> [NODE_MODULES_HOME=<dir>] node admin.mjs
//
// The exit code is the number of failed checks.

import assert from "node:assert/strict";
import { runChecks, sdk } from "./checks.mjs";

const { ServiceBusAdministrationClient } = sdk;

const options = { retryOptions: { maxRetries: 0 } };
const admin = new ServiceBusAdministrationClient(process.env.BUS, options);
const FOREVER = "P10675199DT2H48M5.4775807S";
const run = Date.now().toString(36);
let count = 0;
const fresh = (stem) => `${stem}-${run}-${(count += 1)}`;

async function all(pages) {
  const found = [];
  for await (const item of pages) found.push(item);
  return found;
}

async function refused(code, call) {
  await assert.rejects(call, (error) => {
    assert.equal(error.code, code, `${error.name}: ${error.message}`);
    return true;
  });
}

function holds(actual, expected) {
  for (const [name, value] of Object.entries(expected)) assert.deepEqual(actual[name], value, name);
}

const queueDefaults = {
  lockDuration: "PT1M", maxSizeInMegabytes: 1024, requiresDuplicateDetection: false, requiresSession: false,
  defaultMessageTimeToLive: FOREVER, deadLetteringOnMessageExpiration: false,
  duplicateDetectionHistoryTimeWindow: "PT10M", maxDeliveryCount: 10, enableBatchedOperations: true,
  autoDeleteOnIdle: FOREVER, enablePartitioning: false, status: "Active", availabilityStatus: "Available",
  forwardTo: undefined, userMetadata: undefined, enableExpress: false,
};

const checks = {
  // every element the client expects is there
  "a queue has the documented defaults": async () => {
    const name = fresh("plain");
    holds(await admin.createQueue(name), { name, ...queueDefaults });
    holds(await admin.getQueue(name), { name, ...queueDefaults });
    assert.equal(await admin.queueExists(name), true);
    await admin.deleteQueue(name);
    assert.equal(await admin.queueExists(name), false);
  },

  "a queue keeps its settings and its access rules": async () => {
    const [name, target] = [fresh("full"), fresh("target")];
    await admin.createQueue(target);
    const settings = {
      lockDuration: "PT45S", maxSizeInMegabytes: 2048, requiresDuplicateDetection: true,
      defaultMessageTimeToLive: "P2D", deadLetteringOnMessageExpiration: true,
      duplicateDetectionHistoryTimeWindow: "PT1M", maxDeliveryCount: 8, enableBatchedOperations: false,
      autoDeleteOnIdle: "PT1H", status: "ReceiveDisabled", userMetadata: "<&> \u2603",
    };
    const rule = {
      accessRights: ["Manage", "Send", "Listen"], keyName: "all", primaryKey: "cHJpbWFyeQ==",
      secondaryKey: "c2Vjb25kYXJ5", claimType: "SharedAccessKey",
    };
    const limited = { ...rule, accessRights: ["Send"], keyName: "send" };
    await admin.createQueue(name, { ...settings, forwardTo: target, authorizationRules: [rule, limited] });
    const found = await admin.getQueue(name);
    holds(found, settings);
    assert.ok(found.forwardTo.endsWith(`/${target}`), found.forwardTo);
    assert.equal(found.authorizationRules.length, 2);
    holds(found.authorizationRules[0], rule);
    holds(found.authorizationRules[1], limited);
  },

  // an update replaces what can be written
  "a queue is updated, and forwarding is cleared": async () => {
    const [name, target] = [fresh("changed"), fresh("target")];
    await admin.createQueue(target);
    await admin.createQueue(name, { forwardTo: target });
    const queue = await admin.getQueue(name);
    const updated = await admin.updateQueue({ ...queue, forwardTo: undefined, maxDeliveryCount: 3 });
    holds(updated, { forwardTo: undefined, maxDeliveryCount: 3 });
    holds(await admin.getQueue(name), { forwardTo: undefined, maxDeliveryCount: 3 });
    await refused("ServiceError", () => admin.updateQueue({ ...queue, requiresSession: true }));
    await refused("ServiceError", () => admin.updateQueue({ ...queue, lockDuration: "P25D" }));
  },

  // raw slashes
  "names with slashes": async () => {
    const name = `${fresh("top")}/middle/End`;
    holds(await admin.createQueue(name), { name });
    holds(await admin.getQueue(name), { name });
    await admin.deleteQueue(name);
  },

  "errors have their codes": async () => {
    const name = fresh("once");
    await admin.createQueue(name);
    await refused("MessageEntityAlreadyExistsError", () => admin.createQueue(name));
    await refused("MessageEntityNotFoundError", () => admin.getQueue(fresh("missing")));
    await refused("MessageEntityNotFoundError", () => admin.deleteQueue(fresh("missing")));
    await refused("MessageEntityNotFoundError", () => admin.getSubscription(fresh("missing"), "s"));
    const wrong = process.env.BUS.replace(/SharedAccessKey=[^;]*/, "SharedAccessKey=d3Jvbmc=");
    const stranger = new ServiceBusAdministrationClient(wrong, options);
    await refused("UnauthorizedRequestError", () => stranger.getQueue(name));
    await refused("UnauthorizedRequestError", () => stranger.createQueue(fresh("no")));
  },

  // paging by the next link
  "lists come in pages": async () => {
    const stem = fresh("paged");
    const names = Array.from({ length: 7 }, (_, number) => `${stem}-${number}`);
    for (const name of names) await admin.createQueue(name);
    const mine = (found) => found.map(({ name }) => name).filter((name) => name.startsWith(`${stem}-`));
    assert.deepEqual(mine(await all(admin.listQueues())), names);
    assert.deepEqual(mine(await all(admin.listQueuesRuntimeProperties())), names);
    const paged = [];
    for await (const page of admin.listQueues().byPage({ maxPageSize: 3 })) {
      assert.ok(page.length <= 3);
      paged.push(...page);
    }
    assert.deepEqual(mine(paged), names);
  },

  // CountDetails
  "runtime properties of a queue": async () => {
    const name = fresh("counted");
    await admin.createQueue(name);
    const counts = await admin.getQueueRuntimeProperties(name);
    holds(counts, {
      name, sizeInBytes: 0, totalMessageCount: 0, activeMessageCount: 0, deadLetterMessageCount: 0,
      scheduledMessageCount: 0, transferMessageCount: 0, transferDeadLetterMessageCount: 0,
    });
    assert.ok(counts.createdAt instanceof Date && counts.modifiedAt >= counts.createdAt);
    assert.ok(counts.accessedAt instanceof Date);
  },

  "topics and subscriptions": async () => {
    const topic = fresh("topic/of");
    holds(await admin.createTopic(topic, { userMetadata: "m", supportOrdering: true, maxSizeInMegabytes: 2048 }), {
      name: topic, userMetadata: "m", supportOrdering: true, maxSizeInMegabytes: 2048, status: "Active",
    });
    const created = await admin.createSubscription(topic, "s", {
      lockDuration: "PT30S", deadLetteringOnFilterEvaluationExceptions: false, maxDeliveryCount: 4,
    });
    holds(created, {
      topicName: topic, subscriptionName: "s", lockDuration: "PT30S", maxDeliveryCount: 4,
      deadLetteringOnFilterEvaluationExceptions: false, deadLetteringOnMessageExpiration: false,
      defaultMessageTimeToLive: FOREVER, requiresSession: false, status: "Active",
    });
    await admin.updateSubscription({ ...created, maxDeliveryCount: 9 });
    holds(await admin.getSubscription(topic, "s"), { maxDeliveryCount: 9, lockDuration: "PT30S" });
    assert.equal(await admin.subscriptionExists(topic, "s"), true);
    holds(await admin.getTopicRuntimeProperties(topic), { name: topic, subscriptionCount: 1, scheduledMessageCount: 0 });
    holds(await admin.getSubscriptionRuntimeProperties(topic, "s"), { subscriptionName: "s", totalMessageCount: 0 });
    assert.deepEqual((await all(admin.listSubscriptions(topic))).map((found) => found.subscriptionName), ["s"]);
    assert.equal((await all(admin.listSubscriptionsRuntimeProperties(topic))).length, 1);
    assert.ok((await all(admin.listTopics())).some(({ name }) => name === topic));
    assert.ok((await all(admin.listTopicsRuntimeProperties())).some(({ name }) => name === topic));
    await admin.updateTopic({ ...(await admin.getTopic(topic)), userMetadata: "n" });
    holds(await admin.getTopic(topic), { userMetadata: "n" });
    await admin.deleteSubscription(topic, "s");
    assert.equal(await admin.subscriptionExists(topic, "s"), false);
    await admin.deleteTopic(topic);
    assert.equal(await admin.topicExists(topic), false);
  },

  // rules; the client reads string, int, double, boolean and dateTime values
  "rules keep their filters, actions and typed values": async () => {
    const topic = fresh("ruled");
    await admin.createTopic(topic);
    const own = { name: "own", filter: { correlationId: "x" } };
    await admin.createSubscription(topic, "t", { defaultRuleOptions: own });
    assert.deepEqual((await all(admin.listRules(topic, "t"))).map(({ name }) => name), ["own"]);

    await admin.createSubscription(topic, "s");
    const [first] = await all(admin.listRules(topic, "s"));
    holds(first, { name: "$Default" });
    holds(first.filter, { sqlExpression: "1=1" });
    const parameters = { "@text": "t", "@whole": 5, "@half": 2.5, "@yes": true, "@when": new Date("2026-01-02T03:04:05Z") };
    const filter = { sqlExpression: "a = @text AND b < @half", sqlParameters: parameters };
    const action = { sqlExpression: "SET c = @value", sqlParameters: { "@value": "v" } };
    await admin.createRule(topic, "s", "sql", filter, action);
    const sql = await admin.getRule(topic, "s", "sql");
    holds(sql.filter, filter);
    holds(sql.action, action);
    const same = { correlationId: "c", subject: "l", applicationProperties: { p: "q", n: 3, b: false } };
    holds((await admin.createRule(topic, "s", "same", same)).filter, same);
    await admin.updateRule(topic, "s", { ...sql, filter: { sqlExpression: "z = 1" }, action: {} });
    holds((await admin.getRule(topic, "s", "sql")).filter, { sqlExpression: "z = 1" });
    assert.deepEqual((await all(admin.listRules(topic, "s"))).map(({ name }) => name), ["$Default", "same", "sql"]);
    assert.equal(await admin.ruleExists(topic, "s", "same"), true);
    await admin.deleteRule(topic, "s", "$Default");
    assert.equal(await admin.ruleExists(topic, "s", "$Default"), false);
    await refused("ServiceError", () => admin.createRule(topic, "s", "bad", { sqlExpression: "a = (" }));
    await refused("MessageEntityAlreadyExistsError", () => admin.createRule(topic, "s", "same", same));
  },

  "the namespace tells of itself": async () => {
    const properties = await admin.getNamespaceProperties();
    holds(properties, { messagingSku: "Standard" });
    assert.ok(properties.name && properties.createdAt instanceof Date && properties.modifiedAt instanceof Date);
  },

  // elements introduced later are left out
  "the oldest api version": async () => {
    const old = new ServiceBusAdministrationClient(process.env.BUS, { ...options, serviceVersion: "2017-04" });
    const name = fresh("old");
    holds(await old.createQueue(name), { name, maxMessageSizeInKilobytes: undefined });
    holds(await admin.getQueue(name), { name, maxMessageSizeInKilobytes: 256 });
  },
};

const failed = await runChecks(checks);
process.exit(failed);

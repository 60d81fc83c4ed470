// KafkaJS behind the commands of copying.py.
'use strict';

const readline = require('readline');
const { Kafka, logLevel } = require('kafkajs');

const PARTITIONS = 3;
const RECORDS_OF_BATCH = 500;
const RECORDS_OF_TRANSACTION = 100;
const RETRY = { initialRetryTime: 100, maxRetryTime: 1000, retries: 10000 }; // as long as the test waits

async function produce(kafka, topic) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, retry: RETRY });
  await producer.connect();
  let count = 0;
  const messages = [];
  for await (const line of readline.createInterface({ input: process.stdin })) {
    messages.push({ partition: count % PARTITIONS, value: line });
    count += 1;
    if (messages.length === RECORDS_OF_BATCH) await producer.send({ topic, messages: messages.splice(0) });
  }
  if (messages.length > 0) await producer.send({ topic, messages });
  await producer.disconnect();
}

async function copy(kafka, from, to, group) {
  // First the producer: the client that was killed can commit no more, nor has it left anything open.
  const producer = kafka.producer({ transactionalId: group, maxInFlightRequests: 1, retry: RETRY });
  await producer.connect();
  const consumer = kafka.consumer({ groupId: group, sessionTimeout: 10000, readUncommitted: false, retry: RETRY });
  await consumer.connect();
  await consumer.subscribe({ topic: from, fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat }) => {
      for (let at = 0; at < batch.messages.length; at += RECORDS_OF_TRANSACTION) {
        const records = batch.messages.slice(at, at + RECORDS_OF_TRANSACTION);
        const last = records[records.length - 1].offset;
        const partitions = [{ partition: batch.partition, offset: String(BigInt(last) + 1n) }];
        const transaction = await producer.transaction();
        await transaction.send({ topic: to, messages: records.map(({ value }) => ({ value })) });
        await transaction.sendOffsets({ consumerGroupId: group, topics: [{ topic: from, partitions }] });
        await transaction.commit();
        resolveOffset(last);
        await heartbeat();
      }
    },
  });
  // After an error it is not known how a transaction ended: begin again, at the committed offsets.
  const { CRASH } = consumer.events;
  consumer.on(CRASH, ({ payload }) => { console.error(payload.error); process.exit(3); });
}

const [action, address, ...rest] = process.argv.slice(2);
const kafka = new Kafka({ clientId: 'copy', brokers: [address], logLevel: logLevel.WARN, retry: RETRY });
({ produce, copy })[action](kafka, ...rest).catch((error) => {
  console.error(error);
  process.exit(1);
});

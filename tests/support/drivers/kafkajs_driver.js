// KafkaJS behind the line protocol of lines.py.
'use strict';

const readline = require('readline');
const { Kafka, CompressionTypes, CompressionCodecs, AssignerProtocol, logLevel } = require('kafkajs');
const lz4js = require('lz4js');

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy');
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => Buffer.from(lz4js.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(lz4js.decompress(buffer)),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => {
  const simple = new Promise((resolve) =>
    require('zstd-codec').ZstdCodec.run((zstd) => resolve(new zstd.Simple())));
  return {
    compress: async (encoder) => Buffer.from((await simple).compress(encoder.buffer)),
    decompress: async (buffer) => Buffer.from((await simple).decompress(buffer)),
  };
};
const CODECS = {
  none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4, zstd: CompressionTypes.ZSTD,
};

const decode = (text) => (text === '~' ? null : Buffer.from(text, 'base64'));
const encode = (data) => (data === null || data === undefined ? '~' : Buffer.from(data).toString('base64'));

function fromLine(line) {
  const [partition, timestamp, key, value, headers] = line.split('\t');
  const message = { key: decode(key), value: decode(value), headers: {} };
  if (Number(partition) >= 0) message.partition = Number(partition);
  if (Number(timestamp) >= 0) message.timestamp = timestamp;
  for (const pair of headers.split(';').filter(Boolean)) {
    const at = pair.indexOf('=');
    message.headers[pair.slice(0, at)] = decode(pair.slice(at + 1));
  }
  return message;
}

async function produce(kafka, topic, codec, idempotent) {
  const producer = kafka.producer({ idempotent: idempotent === '1', maxInFlightRequests: 1 });
  await producer.connect();
  const messages = [];
  for await (const line of readline.createInterface({ input: process.stdin })) messages.push(fromLine(line));
  const results = await producer.send({ topic, messages, compression: CODECS[codec], acks: -1 });
  const counts = {};
  for (const message of messages) counts[message.partition] = (counts[message.partition] || 0) + 1;
  for (const { partition, baseOffset } of results) {
    for (let i = 0; i < counts[partition]; i += 1) console.log(`acked ${partition} ${Number(baseOffset) + i}`);
  }
  await producer.disconnect();
}

async function consume(kafka, topic, groupId, assignor, instance, sessionTimeout) {
  const consumer = kafka.consumer({
    groupId, sessionTimeout: Number(sessionTimeout), heartbeatInterval: 500, rebalanceTimeout: 10000,
    maxBytesPerPartition: 20000000, maxBytes: 50000000, maxWaitTimeInMs: 200,
  });
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    const owned = (payload.memberAssignment[topic] || []).slice().sort((a, b) => a - b);
    console.log(`assigned ${owned.join(',')}`);
  });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ partition, message }) => {
      const headers = Object.entries(message.headers || {}).map(([name, value]) => `${name}=${encode(value)}`);
      const fields = [partition, message.timestamp, encode(message.key), encode(message.value), headers.join(';')];
      console.log(`record ${message.offset} ${fields.join('\t')}`);
    },
  });
  process.stdin.resume();
  await new Promise((resolve) => process.stdin.on('end', resolve));
  await consumer.disconnect();
}

const [action, bootstrap, ...rest] = process.argv.slice(2);
const kafka = new Kafka({ clientId: 'driver', brokers: bootstrap.split(','), logLevel: logLevel.ERROR });
({ produce, consume })[action](kafka, ...rest).then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});

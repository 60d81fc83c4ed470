// KafkaJS behind the line protocol of tests/clients/logins/foreign.py.
'use strict';

const fs = require('fs');
const readline = require('readline');
const { Kafka, logLevel } = require('kafkajs');

const MECHANISMS = {
  PLAIN: 'plain', 'SCRAM-SHA-256': 'scram-sha-256', 'SCRAM-SHA-512': 'scram-sha-512', OAUTHBEARER: 'oauthbearer',
};

function settings([address, mechanism, username, password, token, trusted, pem]) {
  const ssl = { ca: [fs.readFileSync(trusted, 'utf8')] };
  if (pem) ssl.cert = ssl.key = fs.readFileSync(pem, 'utf8');
  const found = { clientId: 'driver', brokers: [address], ssl, logLevel: logLevel.NOTHING, retry: { retries: 0 } };
  if (mechanism === 'OAUTHBEARER') {
    found.sasl = { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: token }) };
  } else if (MECHANISMS[mechanism]) {
    found.sasl = { mechanism: MECHANISMS[mechanism], username, password };
  }
  return found;
}

async function produceAndConsume(fields) {
  const [topic, value] = fields.slice(7);
  const kafka = new Kafka(settings(fields));
  const producer = kafka.producer();
  await producer.connect();
  const [{ baseOffset }] = await producer.send({ topic, messages: [{ value, partition: 0 }], acks: -1 });
  await producer.disconnect();
  const consumer = kafka.consumer({ groupId: value, maxWaitTimeInMs: 100 });
  await consumer.connect();
  await consumer.subscribe({ topic });
  let resolve;
  const found = new Promise((done) => { resolve = done; });
  await consumer.run({ eachMessage: async ({ message }) => resolve(message.value.toString()) });
  consumer.seek({ topic, partition: 0, offset: baseOffset });
  const read = await found;
  await consumer.disconnect();
  return read;
}

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    try {
      console.log(`ok\t${await produceAndConsume(line.split('\t'))}`);
    } catch (error) {
      console.log(`refused\t${error.name}\t${String(error.message).replace(/\s/g, ' ')}`);
    }
  }
  process.exit(0);
})();

// Calls one method of specdec's gRPC service, with nothing but the .proto files to know it by, and
// prints what came back as JSON:
//
//   node call.js PROTOS ADDRESS METHOD REQUEST [DEADLINE_MS] [CANCEL_AFTER_MESSAGES]

'use strict';

const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const FILE = 'specdec/v1/inference.proto';
const CONVERSION = { keepCase: true, longs: Number, enums: String, defaults: true };

function connect(protos, address) {
  const definition = loader.loadSync(FILE, { ...CONVERSION, includeDirs: [protos] });
  const { InferenceService } = grpc.loadPackageDefinition(definition).specdec.v1;
  return new InferenceService(address, grpc.credentials.createInsecure());
}

function report(messages, status) {
  const [details] = status.metadata.get('grpc-status-details-bin');
  return {
    messages,
    code: grpc.status[status.code],
    details: status.details,
    rich_status: details ? details.toString('base64') : null,
  };
}

function stream(client, method, request, options, cancelAfter) {
  return new Promise((resolve) => {
    const messages = [];
    const call = client[method](request, options);
    call.on('data', (message) => {
      messages.push(message);
      if (messages.length === cancelAfter) call.cancel();
    });
    call.on('error', () => {}); // its status follows
    call.on('status', (status) => resolve(report(messages, status)));
  });
}

function unary(client, method, request, options) {
  return new Promise((resolve) => {
    let answers = [];
    const call = client[method](request, options, (error, answer) => {
      answers = error ? [] : [answer];
    });
    // The callback comes first: grpc-js tells the status after it.
    call.on('status', (status) => setImmediate(() => resolve(report(answers, status))));
  });
}

async function main([protos, address, method, request, deadlineMs, cancelAfter]) {
  const client = connect(protos, address);
  const deadline = Date.now() + Number(deadlineMs || 60000);
  const { responseStream } = client.constructor.service[method];
  const call = responseStream ? stream : unary;
  const outcome = await call(
    client, method, JSON.parse(request), { deadline }, Number(cancelAfter || 0),
  );
  process.stdout.write(`${JSON.stringify(outcome)}\n`);
  client.close();
}

main(process.argv.slice(2));

// Speaks WebSocket with a server that echoes, by `ws`, and prints what it saw in JSON.
//
//     ws_client.cjs PORT HOST MESSAGES [AUTHORITIES]
//
// With the file of the certificate authorities it connects by TLS. The conversation is that of
// websocket_client.py. A server that is ws_echo.cjs also takes part in half closes.

'use strict'

const crypto = require('crypto')
const fs = require('fs')
const { once } = require('events')
const WebSocket = require('ws')

const [port, host, count, authorities] = process.argv.slice(2)

async function connect() {
  const lookup = (_, options, callback) =>
    options.all ? callback(null, [{ address: '127.0.0.1', family: 4 }]) : callback(null, '127.0.0.1', 4)
  const ca = authorities && fs.readFileSync(authorities)
  const url = `${authorities ? 'wss' : 'ws'}://${host}:${port}/chat`
  const ws = new WebSocket(url, ['chat.v1', 'chat.v2'], { ca, lookup, maxPayload: 0 })
  const received = []
  let wake = () => {}
  ws.on('message', (data, isBinary) => {
    received.push(isBinary ? data : `${data}`)
    wake()
  })
  ws.receive = async () => {
    while (received.length === 0) await new Promise((resolve) => { wake = resolve })
    return received.shift()
  }
  ws.echo = (message) => {
    ws.send(message)
    return ws.receive()
  }
  await once(ws, 'open')
  return ws
}

async function closed(ws) {
  const [code, reason] = await once(ws, 'close')
  return `${code} ${reason}`
}

// Asks until there is an answer: the server may still be at the end of the connection before.
async function ask(ws, question) {
  for (;;) {
    const answer = await ws.echo(question)
    if (answer) return answer
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}

async function converse(seen) {
  const ws = await connect()
  seen.subprotocol = ws.protocol
  seen.text = await ws.echo('hello \u00e9')
  const binary = crypto.randomBytes(1 << 20)
  seen.binary_is_equal = binary.equals(await ws.echo(binary))
  ws.send('one ', { fin: false })
  ws.send('two ', { fin: false })
  seen.fragments = await ws.echo('three')
  ws.ping('by the client')
  seen.ponged = `${(await once(ws, 'pong'))[0]}` === 'by the client'
  seen.pinged = await ws.echo('ping')
  seen.version = await ws.echo('version')
  const messages = Array.from({ length: count }, (_, number) => `message ${number}`)
  messages.forEach((message) => ws.send(message))
  const received = []
  while (received.length < messages.length) received.push(await ws.receive())
  seen.messages_are_equal = received.every((message, number) => message === messages[number])
  ws.close(4001, 'by the client')
  seen.own_close = await closed(ws)
}

// Each side ends its direction, and still receives what the other sends after it has seen that end.
async function halfClose(seen) {
  const client = await connect()
  await client.echo('half close')
  client._socket.end()
  seen.after_own_end = await client.receive()
  await closed(client)

  const server = await connect()
  // Before the listener of `ws`, which ends the client's direction, too.
  server._socket.prependListener('end', () => server.send('after their end'))
  server.send('end')
  await closed(server)
  seen.after_their_end = await ask(await connect(), 'late message')
}

async function main() {
  const seen = {}
  await converse(seen)
  const ws = await connect()
  seen.last_close = await ask(ws, 'last close')
  const echoes = (await ws.echo('late message')) === 'late message'
  ws.send('close')
  seen.their_close = await closed(ws)
  if (!echoes) await halfClose(seen)
  console.log(JSON.stringify(seen))
}

main().then(() => process.exit())

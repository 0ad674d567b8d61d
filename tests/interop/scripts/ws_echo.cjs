// Serves WebSocket with `ws` on a free port of 127.0.0.1, which it prints, until its input ends.
//
//     ws_echo.cjs [CERTIFICATE KEY]
//
// It sends each message back. Some are commands: those of echo.py, and two for ends of the TCP stream in one
// direction: `half close` announces the client's, `end` asks for the server's.

'use strict'

const fs = require('fs')
const http = require('http')
const https = require('https')
const { WebSocketServer } = require('ws')

const [cert, key] = process.argv.slice(2)
const server = cert
  ? https.createServer({ cert: fs.readFileSync(cert), key: fs.readFileSync(key) })
  : http.createServer()

// How the last connection was closed, and the last message after the server's own end.
let lastClose = ''
let lateMessage = ''

const commands = {
  ping(ws) {
    ws.once('pong', (data) => ws.send(`${data}` === 'by the server' ? 'pong' : `pong ${data}`))
    ws.ping('by the server')
  },
  close: (ws) => ws.close(4002, 'by the server'),
  'last close': (ws) => ws.send(lastClose),
  'late message': (ws) => ws.send(lateMessage),
  'half close'(ws) {
    // Before the listener of `ws`, which ends the server's direction, too.
    ws._socket.prependListener('end', () => ws.send('after the end'))
    ws.send('half close')
  },
  end(ws) {
    ws.on('message', (data) => { lateMessage = `${data}` })
    ws._socket.end()
  },
}

const protocols = (offered) => (offered.has('chat.v2') ? 'chat.v2' : false)
new WebSocketServer({ server, handleProtocols: protocols, maxPayload: 0 }).on('connection', (ws) => {
  ws.on('message', (data, isBinary) => {
    const command = isBinary ? undefined : commands[`${data}`]
    if (command) command(ws)
    else if (ws._socket.writable) ws.send(data, { binary: isBinary })
  })
  ws.on('close', (code, reason) => { lastClose = `${code} ${reason}` })
  ws.on('error', () => {})
})

server.listen(0, '127.0.0.1', () => console.log(server.address().port))
process.stdin.on('end', () => process.exit()).resume()

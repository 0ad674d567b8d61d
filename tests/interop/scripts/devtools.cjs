// Drives a page in Chromium by its DevTools protocol.
//
//     devtools.cjs CHROMIUM PROFILE
//
// Reads a command a line, in JSON, and answers each with a line: {"result": ...} or {"error": "..."}.
//
//     {"open": URL}                               a page; waits until it is loaded
//     {"eval": SCRIPT}                            the value of an expression; promises are awaited
//     {"view": [WIDTH, HEIGHT, "light"|"dark"]}   the size of the page, and its colours
//     {"shot": FILE}                              a picture of the whole page, in PNG
//     {"seen": true}                              the requests of the page, and its violations and errors

'use strict'

const { spawn } = require('child_process')
const fs = require('fs')
const readline = require('readline')
const WebSocket = require('ws')

const [chromium, profile] = process.argv.slice(2)
const browser = spawn(chromium, [
  '--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--disable-background-networking',
  '--hide-scrollbars', '--remote-debugging-port=0', `--user-data-dir=${profile}`, 'about:blank',
], { stdio: ['ignore', 'ignore', 'pipe'] })
process.on('exit', () => browser.kill('SIGKILL'))
process.on('SIGTERM', () => process.exit(1))

const seen = { requests: [], violations: [], errors: [] }

// Reports violations of the Content-Security-Policy through the console.
const REPORT = `document.addEventListener('securitypolicyviolation',
  (event) => console.error('violation: ' + event.violatedDirective + ' ' + event.blockedURI))`

function listen({ method, params }) {
  if (method === 'Network.requestWillBeSent') seen.requests.push(params.request.url)
  if (method === 'Runtime.exceptionThrown') seen.errors.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text)
  if (method === 'Runtime.consoleAPICalled' && params.type === 'error') {
    const text = params.args.map((argument) => argument.value).join(' ')
    ;(text.startsWith('violation') ? seen.violations : seen.errors).push(text)
  }
  if (method === 'Log.entryAdded' && params.entry.source === 'security') seen.violations.push(params.entry.text)
}

async function connect() {
  const lines = readline.createInterface({ input: browser.stderr })
  const url = await new Promise((resolve) => {
    lines.on('line', (line) => {
      const found = line.match(/DevTools listening on (\S+)/)
      if (found) resolve(found[1])
    })
  })
  const socket = new WebSocket(url, { perMessageDeflate: false, maxPayload: 0 })
  await new Promise((resolve) => socket.on('open', resolve))
  const pending = new Map()
  const waiters = []
  let next = 1
  let session
  socket.on('message', (data) => {
    const message = JSON.parse(data)
    if (message.id) {
      const { resolve, reject } = pending.get(message.id)
      pending.delete(message.id)
      return message.error ? reject(new Error(message.error.message)) : resolve(message.result)
    }
    listen(message)
    for (const waiter of waiters.splice(0)) waiter.name === message.method ? waiter.resolve() : waiters.push(waiter)
  })
  const send = (method, params = {}) => new Promise((resolve, reject) => {
    pending.set(next, { resolve, reject })
    socket.send(JSON.stringify({ id: next++, method, params, sessionId: session }))
  })
  const { targetId } = await send('Target.createTarget', { url: 'about:blank' })
  session = (await send('Target.attachToTarget', { targetId, flatten: true })).sessionId
  for (const domain of ['Page', 'Network', 'Runtime', 'Log']) await send(`${domain}.enable`)
  await send('Page.addScriptToEvaluateOnNewDocument', { source: REPORT })
  const event = (name) => new Promise((resolve) => waiters.push({ name, resolve }))
  return { send, event }
}

async function obey(page, command) {
  if (command.open) {
    const loaded = page.event('Page.loadEventFired')
    await page.send('Page.navigate', { url: command.open })
    return loaded
  }
  if (command.eval) {
    const { result, exceptionDetails } = await page.send('Runtime.evaluate', {
      expression: command.eval, awaitPromise: true, returnByValue: true, userGesture: true,
    })
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text)
    return result.value
  }
  if (command.view) {
    const [width, height, value] = command.view
    await page.send('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile: width < 500 })
    return page.send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value }] })
  }
  if (command.shot) {
    const { cssContentSize: { width, height } } = await page.send('Page.getLayoutMetrics')
    const { data } = await page.send('Page.captureScreenshot', {
      captureBeyondViewport: true, clip: { x: 0, y: 0, width, height, scale: 1 },
    })
    return fs.writeFileSync(command.shot, Buffer.from(data, 'base64'))
  }
  return seen
}

async function main() {
  const page = await connect()
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let answer
    try {
      answer = { result: (await obey(page, JSON.parse(line))) ?? null }
    } catch (error) {
      answer = { error: `${error.message}` }
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`)
  }
  process.exit(0)
}

main()

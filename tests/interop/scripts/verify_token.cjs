// Verifies signed tokens with the module jose, as verify_token.py does with Python's libraries.
"use strict";

const http = require("node:http");
const { generateKeyPairSync } = require("node:crypto");
const jose = require("jose");

const secret = new TextEncoder().encode("a secret of some length, for tests alone");
const rsa = generateKeyPairSync("rsa", { modulusLength: 2048 });

const libraries = {
  jose: {
    issue: (user) => new jose.SignJWT({ sub: user }).setProtectedHeader({ alg: "HS256" }).sign(secret),
    verify: (token) => jose.jwtVerify(token, secret),
  },
  "jose-rsa": {
    issue: (user) => new jose.SignJWT({ sub: user }).setProtectedHeader({ alg: "RS256" }).sign(rsa.privateKey),
    verify: (token) => jose.jwtVerify(token, rsa.publicKey),
  },
  "jose-encrypted": {
    issue: (user) =>
      new jose.EncryptJWT({ sub: user }).setProtectedHeader({ alg: "dir", enc: "A256GCM" }).encrypt(secret.slice(0, 32)),
    verify: (token) => jose.jwtDecrypt(token, secret.slice(0, 32)),
  },
};

const accepts = (library, token) => libraries[library].verify(token).then(() => true, () => false);

async function answer(request, body) {
  const [, library, action] = request.url.split("/");
  if (request.method === "POST" && action === "issue") return [200, await libraries[library].issue(body)];
  if (request.method === "POST") {
    const tokens = JSON.parse(body);
    const accepted = await Promise.all(tokens.map((token) => accepts(library, token)));
    return [200, JSON.stringify(tokens.filter((_, index) => accepted[index]))];
  }
  const { authorization = "", cookie = "", "x-token": header } = request.headers;
  const token = header ?? (cookie.startsWith("session=") ? cookie.slice(8) : authorization.slice(7));
  return (await accepts(library, token)) ? [200, "hello\n"] : [401, "no\n"];
}

const server = http.createServer(async (request, response) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  const [status, body] = await answer(request, Buffer.concat(parts).toString());
  response.writeHead(status, { "content-length": Buffer.byteLength(body) }).end(body);
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
process.stdin.on("end", () => process.exit()).resume();

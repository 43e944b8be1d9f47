// A client of the Language Server Protocol: starts the server, sends it messages, and hands on what comes back.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"use strict";
const { spawn } = require("child_process");

class Client {
  /// `on.notification(method, params)`, `on.said(text)` for its stderr, `on.end(why)` when it ends without being asked.
  constructor([program, ...words], folder, on) {
    this.on = on;
    this.number = 0;
    this.waiting = new Map(); // by the number of the request
    this.got = Buffer.alloc(0);
    this.isOver = false;
    this.server = spawn(program, words, { cwd: folder, stdio: "pipe" });
    this.server.on("error", (error) => this.end(`cannot start \`${program}\`: ${error.message}`));
    this.server.on("exit", (code, signal) => this.end(`${program} ended with ${signal || code}`));
    this.server.stdin.on("error", () => {}); // `exit` says it
    this.server.stderr.on("data", (text) => on.said(String(text)));
    this.server.stdout.on("data", (bytes) => this.receive(bytes));
  }

  end(why) {
    const wasOver = this.isOver;
    this.isOver = true;
    for (const { reject } of this.waiting.values()) reject(new Error(why));
    this.waiting.clear();
    if (!wasOver) this.on.end(why);
  }

  send(message) {
    const text = JSON.stringify({ jsonrpc: "2.0", ...message });
    if (!this.isOver) this.server.stdin.write(`Content-Length: ${Buffer.byteLength(text)}\r\n\r\n${text}`);
  }

  notify(method, params) {
    this.send({ method, params });
  }

  request(method, params) {
    if (this.isOver) return Promise.reject(new Error("the server has ended"));
    const id = ++this.number;
    const answer = new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
    this.send({ id, method, params });
    return answer;
  }

  receive(bytes) {
    this.got = Buffer.concat([this.got, bytes]);
    for (;;) {
      const head = this.got.indexOf("\r\n\r\n");
      const length = head < 0 ? null : /content-length: *(\d+)/i.exec(this.got.toString("latin1", 0, head));
      if (!length || this.got.length < head + 4 + Number(length[1])) return;
      const end = head + 4 + Number(length[1]);
      const message = JSON.parse(this.got.toString("utf8", head + 4, end));
      this.got = this.got.subarray(end);
      this.take(message);
    }
  }

  take({ id, method, params, result, error }) {
    if (method && id === undefined) return this.on.notification(method, params);
    if (method) return this.send({ id, error: { code: -32601, message: `this client has no ${method}` } });
    const asked = this.waiting.get(id);
    this.waiting.delete(id);
    if (asked && error) asked.reject(new Error(error.message));
    else if (asked) asked.resolve(result);
  }

  /// Ends the server as the protocol asks for, or by force after a second.
  async close() {
    if (this.isOver) return;
    const force = setTimeout(() => this.server.kill("SIGKILL"), 1000);
    this.server.on("exit", () => clearTimeout(force));
    await this.request("shutdown", null).catch(() => {});
    this.notify("exit", null);
    this.isOver = true;
  }
}

module.exports = { Client };

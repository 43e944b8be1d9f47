// Runs the extension for VS Code in Node with a `vscode` of its own, and prints what the extension shows, as JSON.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// usage: node vscode.js EXTENSION PP_COMPILE FILE.pipe RIGHT WRONG      two texts of the file; it begins with RIGHT
"use strict";
const [extension, compiler, path, right, wrong] = process.argv.slice(2);
const Module = require("module");
const fs = require("fs");

class Place { constructor(...words) { Object.assign(this, words); } }
const file = (fsPath) => ({ scheme: "file", path: fsPath, fsPath, toString: () => "file://" + fsPath });
const document = { uri: file(path), languageId: "pipe", version: 1, getText() { return this.text; },
  text: fs.readFileSync(right, "utf8") };
const heard = {}, commands = {}, providers = {}, told = new Map(), posted = [], errors = [];
let server = [compiler, "--lsp"], page = null, waiting = () => {};
const hear = (name) => (handler) => { heard[name] = handler; return {}; };
const provide = (name) => (_, provider) => { providers[name] = provider; return {}; };
const vscode = {
  workspace: {
    textDocuments: [document], workspaceFolders: undefined,
    getConfiguration: () => ({ get: (name) => ({ server, messages: false, memory: false })[name] }),
    onDidOpenTextDocument: hear("open"), onDidChangeTextDocument: hear("change"),
    onDidCloseTextDocument: hear("close"), onDidChangeConfiguration: hear("settings"),
  },
  languages: {
    createDiagnosticCollection: () => ({ clear: () => told.clear(),
      set: (uri, its) => { told.set(uri.fsPath, its); waiting(); } }),
    registerHoverProvider: provide("hover"), registerDefinitionProvider: provide("definition"),
    registerCompletionItemProvider: provide("completion"),
  },
  commands: { registerCommand: (name, run) => { commands[name] = run; return {}; } },
  window: {
    createOutputChannel: () => ({ append() {}, appendLine() {} }), activeTextEditor: { document },
    showErrorMessage: (text) => errors.push(text), showInformationMessage: (text) => errors.push(text),
    createWebviewPanel: () => ({ reveal() {}, onDidDispose() {}, webview: {
      set html(text) { page = text; }, onDidReceiveMessage(run) { setImmediate(run, "ready"); },
      postMessage: (message) => { posted.push(message.svg); waiting(); } } }),
  },
  Uri: { parse: (text) => file(decodeURIComponent(text.replace("file://", ""))) }, ViewColumn: { Beside: -2 },
  Range: Place, Location: Place, DiagnosticRelatedInformation: Place, MarkdownString: String,
  Diagnostic: class { constructor(range, message, severity) { Object.assign(this, { range, message, severity }); } },
  Hover: class { constructor(contents) { this.contents = String(contents); } },
  CompletionItem: class { constructor(label, kind) { Object.assign(this, { label, kind }); } },
};
const load = Module._load;
Module._load = (name, ...rest) => (name === "vscode" ? vscode : load(name, ...rest));
const { activate, deactivate } = require(extension);

async function until(holds) {
  while (!holds()) await new Promise((resolve) => { waiting = resolve; });
}
function put(name) {
  document.text = fs.readFileSync(name, "utf8");
  document.version++;
  heard.change({ document, contentChanges: [{}] });
}

async function main() {
  const of = () => told.get(path), made = {};
  await activate({ subscriptions: [] });
  await until(of);
  made.right = of().length;
  commands["pp.timeline"]();
  await until(() => posted.length > 0);
  made.page = page;
  made.first = posted.at(-1);
  const at = { line: 1, character: 12 };
  made.hover = (await providers.hover.provideHover(document, at)).contents;
  made.definition = (await providers.definition.provideDefinition(document, at))[0][1];
  made.completion = (await providers.completion.provideCompletionItems(document, at)).slice(0, 200);
  put(wrong);
  await until(() => of().length > 0 && posted.at(-1) === "");
  made.wrong = of();
  put(right);
  await until(() => of().length === 0 && posted.at(-1));
  made.again = posted.at(-1);
  told.clear();
  await commands["pp.restart"]();
  await until(of);
  made.restarted = of().length;
  server = ["/no/such/program"];
  await heard.settings({ affectsConfiguration: () => true });
  made.errors = errors;
  await deactivate();
  console.log(JSON.stringify(made));
}
setTimeout(() => { console.error("it takes too long"); process.exit(1); }, 60000).unref();
main().catch((error) => { console.error(error); process.exit(1); });

// The extension: hands texts and questions of VS Code to the server, and shows its answers and the timeline.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"use strict";
const vscode = require("vscode");
const { randomBytes } = require("crypto");
const { Client } = require("./client");

const MOST_STARTS = 5; // of a server that ends by itself
let client = null, starts = 0, output, diagnostics;
const panels = new Map(); // by the URI of the file whose timeline they show

const isPipe = (document) => document.languageId === "pipe" && document.uri.scheme === "file";
const idOf = (document) => ({ uri: document.uri.toString() });
const placeIn = (document, { line, character }) => ({ textDocument: idOf(document), position: { line, character } });
const rangeOf = ({ start, end }) => new vscode.Range(start.line, start.character, end.line, end.character);
const locationOf = ({ uri, range }) => new vscode.Location(vscode.Uri.parse(uri), rangeOf(range));

async function start() {
  const settings = vscode.workspace.getConfiguration("pp");
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
  const its = (client = new Client(settings.get("server"), folder, {
    notification: (method, params) => its === client && method === "textDocument/publishDiagnostics" && show(params),
    said: (text) => output.append(text),
    end: (why) => its === client && restart(why),
  }));
  const capabilities = { textDocument: { publishDiagnostics: { relatedInformation: true } } };
  await its.request("initialize", { processId: process.pid, rootUri: null, capabilities });
  its.notify("initialized", {});
  vscode.workspace.textDocuments.forEach(open);
}

/// After a server that ended.
function restart(why) {
  output.appendLine(why);
  diagnostics.clear();
  if (++starts < MOST_STARTS && !why.startsWith("cannot start")) return start().catch(() => {});
  vscode.window.showErrorMessage(`pp: ${why}; the setting pp.server says what is started`);
}

async function startAgain() {
  const old = client;
  client = null;
  starts = 0;
  await old?.close();
  diagnostics.clear();
  await start().catch(() => {}); // `restart` has said why
}

//---- Texts ------------------------------------------------------------------------------------------------------

function open(document) {
  if (!isPipe(document)) return;
  const { version } = document;
  client?.notify("textDocument/didOpen",
    { textDocument: { ...idOf(document), languageId: "pipe", version, text: document.getText() } });
}

function change({ document, contentChanges }) {
  if (!isPipe(document) || contentChanges.length === 0) return;
  client?.notify("textDocument/didChange",
    { textDocument: { ...idOf(document), version: document.version }, contentChanges: [{ text: document.getText() }] });
}

function close(document) {
  if (isPipe(document)) client?.notify("textDocument/didClose", { textDocument: idOf(document) });
}

//---- Answers ----------------------------------------------------------------------------------------------------

function show({ uri, diagnostics: told }) {
  diagnostics.set(vscode.Uri.parse(uri), told.map((one) => {
    const made = new vscode.Diagnostic(rangeOf(one.range), one.message, one.severity - 1); // theirs counts from 0
    made.source = one.source;
    made.relatedInformation = (one.relatedInformation || []).map(
      ({ location, message }) => new vscode.DiagnosticRelatedInformation(locationOf(location), message));
    return made;
  }));
  for (const [file, panel] of panels) draw(file, panel);
}

const asking = (method, answer) => async (document, position) =>
  client && answer(await client.request(method, placeIn(document, position)));

const provideHover = asking("textDocument/hover", (its) =>
  its && new vscode.Hover(new vscode.MarkdownString(its.contents.value), rangeOf(its.range)));
const provideDefinition = asking("textDocument/definition", (its) => its.map(locationOf));
const provideCompletionItems = asking("textDocument/completion", (its) => its.items.map((one) => {
  const item = new vscode.CompletionItem(one.label, one.kind - 1);
  item.detail = one.detail;
  return item;
}));

//---- The timeline -----------------------------------------------------------------------------------------------

function page(nonce) {
  return `<!doctype html><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-${nonce}'">
<style>
  body { background: #fff; color: #222 }
  svg { max-width: 100%; height: auto }
  .old { filter: grayscale(1); opacity: .35 }
</style>
<div id="figure"></div><p id="state"></p>
<script nonce="${nonce}">
  const [figure, state] = ["figure", "state"].map((id) => document.getElementById(id));
  addEventListener("message", ({ data }) => {
    if (data.svg) figure.innerHTML = data.svg;
    figure.className = data.svg ? "" : "old";
    state.textContent = data.svg ? "" : "the file has errors";
  });
  acquireVsCodeApi().postMessage("ready");
</script>`;
}

async function draw(file, panel) {
  const settings = vscode.workspace.getConfiguration("pp");
  const how = { messages: settings.get("messages"), memory: settings.get("memory") };
  const answer = await client?.request("pp/timeline", { textDocument: { uri: file }, ...how }).catch(() => null);
  if (answer && panels.get(file) === panel) panel.webview.postMessage(answer);
}

function timeline() {
  const document = vscode.window.activeTextEditor?.document;
  if (!document || !isPipe(document)) return vscode.window.showInformationMessage("pp: open a .pipe file first");
  const file = document.uri.toString();
  let panel = panels.get(file);
  if (panel) return panel.reveal();
  const name = document.uri.path.split("/").pop();
  panel = vscode.window.createWebviewPanel("pp.timeline", `timeline of ${name}`,
    { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true },
    { enableScripts: true, retainContextWhenHidden: true });
  panels.set(file, panel);
  panel.onDidDispose(() => panels.delete(file));
  panel.webview.onDidReceiveMessage(() => draw(file, panel)); // the page is there
  panel.webview.html = page(randomBytes(16).toString("hex"));
}

async function activate(context) {
  output = vscode.window.createOutputChannel("pp");
  diagnostics = vscode.languages.createDiagnosticCollection("pp");
  const { workspace, languages, commands } = vscode, files = { language: "pipe", scheme: "file" };
  context.subscriptions.push(output, diagnostics, workspace.onDidOpenTextDocument(open),
    workspace.onDidChangeTextDocument(change), workspace.onDidCloseTextDocument(close),
    workspace.onDidChangeConfiguration((event) => event.affectsConfiguration("pp.server") && startAgain()),
    languages.registerHoverProvider(files, { provideHover }),
    languages.registerDefinitionProvider(files, { provideDefinition }),
    languages.registerCompletionItemProvider(files, { provideCompletionItems }, '"', "/"),
    commands.registerCommand("pp.timeline", timeline), commands.registerCommand("pp.restart", startAgain));
  await start().catch(() => {}); // `restart` has said why
}

function deactivate() {
  const old = client;
  client = null;
  return old?.close();
}

module.exports = { activate, deactivate };

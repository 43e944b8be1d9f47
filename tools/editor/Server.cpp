// The protocol of the language server: what an editor tells and asks, and its answers in the editor's terms.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Somebody who types changes a text faster than it can be proved. So a change only notes the file. A second thread
// checks what is noted when no change has come for some milliseconds; a question to the server checks it at once.
#include "tools/editor/Server.h"
#include "mlir/Tools/lsp-server-support/Transport.h"
#include "tools/Forms.h"
#include "tools/editor/Document.h"
#include "llvm/Support/Program.h"
#include <condition_variable>
#include <map>
#include <set>
#include <thread>

using namespace mlir;
using namespace pp;
namespace lsp = mlir::lsp;
namespace json = llvm::json;

static llvm::cl::opt<bool> serverOption("lsp", llvm::cl::cat(compileOptions()),
                                        llvm::cl::desc("serve an editor: the Language Server Protocol on stdin and "
                                                       "stdout"));

bool pp::wantsLanguageServer() { return serverOption; }

namespace {

/// Of the request `pp/timeline`.
struct TimelineParams {
  lsp::TextDocumentIdentifier textDocument;
  bool messages = false, memory = false;
};

bool fromJSON(const json::Value &value, TimelineParams &result, json::Path path) {
  json::ObjectMapper map(value, path);
  return map && map.map("textDocument", result.textDocument) && map.mapOptional("messages", result.messages) &&
         map.mapOptional("memory", result.memory);
}

// A key is pressed less often than this; two notifications of one key come faster.
constexpr std::chrono::milliseconds kPause(20);

lsp::Range rangeOf(const TextPlace &place) {
  return {{int(place.line), int(place.column)}, {int(place.line), int(place.end)}};
}

class Server {
public:
  Server(lsp::JSONTransport &transport, const FrontendOptions &options)
      : options(options), handler(transport),
        publish(handler.outgoingNotification<lsp::PublishDiagnosticsParams>("textDocument/publishDiagnostics")) {
    handler.method("initialize", this, &Server::onInitialize);
    handler.notification("initialized", this, &Server::onInitialized);
    handler.method("shutdown", this, &Server::onShutdown);
    handler.notification("textDocument/didOpen", this, &Server::onOpen);
    handler.notification("textDocument/didChange", this, &Server::onChange);
    handler.notification("textDocument/didClose", this, &Server::onClose);
    handler.method("textDocument/definition", this, &Server::onDefinition);
    handler.method("textDocument/hover", this, &Server::onHover);
    handler.method("textDocument/completion", this, &Server::onCompletion);
    handler.method("pp/timeline", this, &Server::onTimeline);
    worker = std::thread([this] { work(); });
  }
  ~Server() {
    {
      std::lock_guard lock(mutex);
      isOver = true;
    }
    changed.notify_one();
    worker.join();
  }

  lsp::MessageHandler &messages() { return handler; }
  bool wasShutDown() const { return isDown; }

private:
  FrontendOptions options;
  lsp::MessageHandler handler;
  lsp::OutgoingNotification<lsp::PublishDiagnosticsParams> publish;
  bool isDown = false;
  std::thread worker;
  std::mutex mutex; ///< for all that follows
  std::condition_variable changed;
  bool isOver = false;
  uint64_t changes = 0;
  std::set<std::string> noted;        ///< files that have changed and are not checked yet
  llvm::StringMap<std::string> texts; ///< of open files
  std::map<std::string, int64_t> versions;
  std::map<std::string, std::unique_ptr<Document>> documents;
  using Diagnostics = std::vector<lsp::Diagnostic>;
  std::map<std::string, std::map<std::string, Diagnostics>> told; ///< by open file: its messages, by their file

  void onInitialize(const lsp::InitializeParams &, lsp::Callback<json::Value> reply) {
    reply(json::Object{
        {"serverInfo", json::Object{{"name", "pp"}}},
        {"capabilities",
         json::Object{{"textDocumentSync", json::Object{{"openClose", true}, {"change", 1}, {"save", false}}},
                      {"definitionProvider", true},
                      {"hoverProvider", true},
                      {"completionProvider", json::Object{{"triggerCharacters", json::Array{"\"", "/"}}}}}}});
  }
  void onInitialized(const lsp::NoParams &) {}
  void onShutdown(const lsp::NoParams &, lsp::Callback<std::nullptr_t> reply) {
    isDown = true;
    reply(nullptr);
  }

  void onOpen(const lsp::DidOpenTextDocumentParams &params) {
    update(params.textDocument.uri.file(), params.textDocument.text, params.textDocument.version);
  }
  void onChange(const lsp::DidChangeTextDocumentParams &params) {
    std::string path = params.textDocument.uri.file().str(), text;
    {
      std::lock_guard lock(mutex);
      text = texts.lookup(path);
    }
    if (succeeded(lsp::TextDocumentContentChangeEvent::applyTo(params.contentChanges, text)))
      update(path, text, params.textDocument.version);
  }
  void onClose(const lsp::DidCloseTextDocumentParams &params) {
    std::string path = params.textDocument.uri.file().str();
    std::lock_guard lock(mutex);
    texts.erase(path);
    documents.erase(path);
    note(path);
  }

  void update(StringRef path, StringRef text, int64_t version) {
    std::lock_guard lock(mutex);
    texts[path] = text.str();
    versions[path.str()] = version;
    documents[path.str()]; // null until it is checked
    note(path.str());
  }

  void note(const std::string &path) {
    noted.insert(path);
    ++changes;
    changed.notify_one();
  }

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return isOver || !noted.empty(); });
      for (uint64_t seen = ~changes; seen != changes && !isOver;) {
        seen = changes;
        changed.wait_for(lock, kPause);
      }
      if (isOver)
        return;
      settle();
    }
  }

  /// Checks the files that have changed, and the open files that import them, and tells the editor.
  void settle() {
    std::set<std::string> files, touched;
    for (const auto &[path, document] : documents)
      if (noted.count(path) || llvm::any_of(noted, [&](const std::string &file) { return document->imports(file); }))
        files.insert(path);
    for (const std::string &path : std::exchange(noted, {}))
      if (!documents.count(path))
        forget(path, touched);
    for (const std::string &path : files) {
      documents[path] = std::make_unique<Document>(path, texts.lookup(path), options, texts);
      forget(path, touched);
      touched.insert(path);
      for (const Told &one : documents[path]->told()) {
        told[path][one.place.file].push_back(diagnosticOf(one));
        touched.insert(one.place.file);
      }
    }
    for (const std::string &file : touched)
      tell(file);
  }

  void forget(const std::string &path, std::set<std::string> &touched) {
    for (const auto &[file, _] : told[path])
      touched.insert(file);
    told.erase(path);
  }

  /// What all open files say of this one; what two of them say stands there once.
  void tell(const std::string &file) {
    llvm::Expected<lsp::URIForFile> uri = lsp::URIForFile::fromFile(file);
    if (!uri)
      return llvm::consumeError(uri.takeError());
    lsp::PublishDiagnosticsParams params(*uri, versions[file]);
    for (const auto &[_, its] : told)
      if (auto found = its.find(file); found != its.end())
        for (const lsp::Diagnostic &one : found->second)
          if (llvm::none_of(params.diagnostics, [&](const lsp::Diagnostic &other) {
                return other.range == one.range && other.message == one.message;
              }))
            params.diagnostics.push_back(one);
    publish(params);
  }

  static std::optional<lsp::Location> locationOf(const TextPlace &place) {
    llvm::Expected<lsp::URIForFile> uri = lsp::URIForFile::fromFile(place.file);
    if (uri)
      return lsp::Location(*uri, rangeOf(place));
    llvm::consumeError(uri.takeError());
    return std::nullopt;
  }

  static lsp::Diagnostic diagnosticOf(const Told &one) {
    lsp::Diagnostic made;
    made.range = rangeOf(one.place);
    made.source = "pp";
    made.message = one.message;
    made.severity = one.severity == DiagnosticSeverity::Error     ? lsp::DiagnosticSeverity::Error
                    : one.severity == DiagnosticSeverity::Warning ? lsp::DiagnosticSeverity::Warning
                                                                  : lsp::DiagnosticSeverity::Information;
    std::vector<lsp::DiagnosticRelatedInformation> related;
    for (const auto &[place, note] : one.notes)
      if (std::optional<lsp::Location> location = locationOf(place))
        related.push_back({*location, note});
    if (!related.empty())
      made.relatedInformation = std::move(related);
    return made;
  }

  /// The document of the newest text; the caller holds the lock.
  Document *documentOf(const lsp::TextDocumentIdentifier &its) {
    settle();
    auto found = documents.find(its.uri.file().str());
    return found == documents.end() ? nullptr : found->second.get();
  }

  void onDefinition(const lsp::TextDocumentPositionParams &params, lsp::Callback<std::vector<lsp::Location>> reply) {
    std::lock_guard lock(mutex);
    std::vector<lsp::Location> found;
    if (Document *document = documentOf(params.textDocument))
      if (std::optional<TextPlace> place = document->definition(params.position.line, params.position.character))
        if (std::optional<lsp::Location> location = locationOf(*place))
          found.push_back(*location);
    reply(found);
  }

  void onHover(const lsp::TextDocumentPositionParams &params, lsp::Callback<std::optional<lsp::Hover>> reply) {
    std::lock_guard lock(mutex);
    Document *document = documentOf(params.textDocument);
    std::string text = document ? document->hover(params.position.line, params.position.character) : "";
    if (text.empty())
      return reply(std::nullopt);
    lsp::Hover hover{lsp::Range(params.position)};
    hover.contents.value = std::move(text);
    reply(std::optional(hover));
  }

  void onCompletion(const lsp::CompletionParams &params, lsp::Callback<lsp::CompletionList> reply) {
    std::lock_guard lock(mutex);
    lsp::CompletionList list;
    Document *document = documentOf(params.textDocument);
    if (document)
      for (const auto &[name, kind] : document->completions(params.position.line, params.position.character)) {
        lsp::CompletionItem item(name, kind == "word"   ? lsp::CompletionItemKind::Keyword
                                       : kind == "file" ? lsp::CompletionItemKind::File
                                       : kind == "fn"   ? lsp::CompletionItemKind::Function
                                                        : lsp::CompletionItemKind::Variable);
        item.detail = kind.str();
        list.items.push_back(std::move(item));
      }
    reply(list);
  }

  void onTimeline(const TimelineParams &params, lsp::Callback<json::Value> reply) {
    std::lock_guard lock(mutex);
    Document *document = documentOf(params.textDocument);
    reply(json::Object{{"svg", document ? document->timeline(params.messages, params.memory) : ""}});
  }
};

} // namespace

LogicalResult pp::serveLanguage(const FrontendOptions &options) {
  llvm::sys::ChangeStdinToBinary();
  lsp::JSONTransport transport(stdin, llvm::outs());
  Server server(transport, options);
  if (llvm::Error error = transport.run(server.messages()))
    return llvm::consumeError(std::move(error)), failure();
  return success(server.wasShutDown());
}

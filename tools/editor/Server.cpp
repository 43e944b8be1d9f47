// The protocol of the language server: what an editor tells and asks, and its answers in the editor's terms.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/editor/Server.h"
#include "mlir/Tools/lsp-server-support/Transport.h"
#include "tools/Forms.h"
#include "tools/editor/Document.h"
#include "llvm/Support/Program.h"
#include <map>
#include <set>

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
  }

  lsp::MessageHandler &messages() { return handler; }
  bool wasShutDown() const { return isDown; }

private:
  FrontendOptions options;
  lsp::MessageHandler handler;
  lsp::OutgoingNotification<lsp::PublishDiagnosticsParams> publish;
  llvm::StringMap<std::string> texts; ///< of open files
  std::map<std::string, int64_t> versions;
  std::map<std::string, std::unique_ptr<Document>> documents;
  std::map<std::string, std::set<std::string>> told; ///< by open file: the files that have its messages
  bool isDown = false;

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
    std::string path = params.textDocument.uri.file().str(), text = texts.lookup(path);
    if (succeeded(lsp::TextDocumentContentChangeEvent::applyTo(params.contentChanges, text)))
      update(path, text, params.textDocument.version);
  }
  void onClose(const lsp::DidCloseTextDocumentParams &params) {
    std::string path = params.textDocument.uri.file().str();
    texts.erase(path);
    documents.erase(path);
    for (const std::string &file : told[path])
      tell(file, {});
    told.erase(path);
    checkOthers(path);
  }

  /// Checks the file, and then the others.
  void update(StringRef path, StringRef text, int64_t version) {
    texts[path] = text.str();
    versions[path.str()] = version;
    check(path.str());
    checkOthers(path);
  }

  /// Checks the open files that may import this one.
  void checkOthers(StringRef path) {
    for (const auto &[other, document] : documents)
      if (other != path)
        check(other);
  }

  void check(const std::string &path) {
    documents[path] = std::make_unique<Document>(path, texts.lookup(path), options, texts);
    std::map<std::string, std::vector<lsp::Diagnostic>> byFile{{path, {}}};
    for (const std::string &file : told[path])
      byFile[file];
    for (const Told &one : documents[path]->told())
      byFile[one.place.file].push_back(diagnosticOf(one));
    told[path].clear();
    for (auto &[file, diagnostics] : byFile) {
      if (!diagnostics.empty())
        told[path].insert(file);
      tell(file, std::move(diagnostics));
    }
  }

  void tell(const std::string &file, std::vector<lsp::Diagnostic> diagnostics) {
    llvm::Expected<lsp::URIForFile> uri = lsp::URIForFile::fromFile(file);
    if (!uri)
      return llvm::consumeError(uri.takeError());
    lsp::PublishDiagnosticsParams params(*uri, versions[file]);
    params.diagnostics = std::move(diagnostics);
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

  Document *documentOf(const lsp::TextDocumentIdentifier &its) {
    auto found = documents.find(its.uri.file().str());
    return found == documents.end() ? nullptr : found->second.get();
  }

  void onDefinition(const lsp::TextDocumentPositionParams &params, lsp::Callback<std::vector<lsp::Location>> reply) {
    std::vector<lsp::Location> found;
    if (Document *document = documentOf(params.textDocument))
      if (std::optional<TextPlace> place = document->definition(params.position.line, params.position.character))
        if (std::optional<lsp::Location> location = locationOf(*place))
          found.push_back(*location);
    reply(found);
  }

  void onHover(const lsp::TextDocumentPositionParams &params, lsp::Callback<std::optional<lsp::Hover>> reply) {
    Document *document = documentOf(params.textDocument);
    std::string text = document ? document->hover(params.position.line, params.position.character) : "";
    if (text.empty())
      return reply(std::nullopt);
    lsp::Hover hover{lsp::Range(params.position)};
    hover.contents.value = std::move(text);
    reply(std::optional(hover));
  }

  void onCompletion(const lsp::CompletionParams &params, lsp::Callback<lsp::CompletionList> reply) {
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

// A small HTTP server for one page: browsers follow a stream of numbers, and get the figure when there is a new number.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   browser              this process
//   GET /          --->  the page
//   GET /page.js   --->  what it runs
//   GET /events    --->  a line for each round of --watch, while the browser stays
//   GET /state     --->  {"round": 3, "title": "eager.pipe", "svg": "<svg ..", "messages": "..", "isRight": true}
//
// There is no other address, and no answer comes from a file. It listens on 127.0.0.1. A site that has its own name
// point there gets nothing: only requests to `127.0.0.1` and `localhost` are answered.
#include "tools/editor/Serve.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/JSON.h"
#include <arpa/inet.h>
#include <cstring>
#include <fcntl.h>
#include <list>
#include <mutex>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace pp;
using llvm::StringRef;

static constexpr size_t kMostConnections = 500, kMostHead = 16'384, kMostUnsent = 65'536;

static constexpr StringRef kPage = R"page(<!doctype html>
<meta charset="utf-8"><title>pp</title><link rel="icon" href="data:,">
<style>
  body { font: 14px sans-serif; margin: 16px; color: #222; background: #fff }
  #figure.old { filter: grayscale(1); opacity: .35 }
  #figure svg { max-width: 100%; height: auto }
  #messages { font: 13px monospace; white-space: pre-wrap }
  #messages.wrong { border-left: 4px solid #c33; padding-left: 12px }
</style>
<pre id="messages"></pre><div id="figure"></div><p id="state"></p><script src="/page.js"></script>
)page";

static constexpr StringRef kScript = R"script(
const [figure, messages, state] = ["figure", "messages", "state"].map((id) => document.getElementById(id));
let events = null, round = 0;
async function draw() {
  const now = await (await fetch("/state")).json();
  if (now.round < round) return; // an older answer that comes late
  round = now.round;
  document.title = (now.isRight ? "" : "\u2717 ") + now.title;
  figure.innerHTML = now.svg;
  figure.className = now.isRight ? "" : "old";
  messages.textContent = now.messages;
  messages.className = now.isRight ? "" : "wrong";
  state.textContent = "";
}
function follow() { // a browser has six connections to a server, for all its tabs: one that nobody sees needs none
  if (document.hidden && events) events.close();
  if (document.hidden) return void (events = null);
  if (events) return;
  events = new EventSource("/events");
  events.onmessage = draw;
  events.onerror = () => {
    round = 0;
    state.textContent = "the process behind this page has ended, or does not answer";
  };
}
document.onvisibilitychange = follow;
follow();
)script";

namespace {

struct Connection {
  int socket;
  std::string in, out;
  bool follows = false;    ///< it gets a line for each round
  bool isAnswered = false; ///< it ends when `out` is sent
};

class LocalPage : public PageServer {
public:
  LocalPage(int listener, StringRef title) : listener(listener), title(title) {}
  ~LocalPage() override {
    if (thread.joinable()) {
      isOver = true;
      wake();
      thread.join();
    }
    for (Connection &each : connections)
      close(each.socket);
    for (int each : {listener, wakes[0], wakes[1]})
      if (each >= 0)
        close(each);
  }

  bool start() {
    if (pipe2(wakes, O_CLOEXEC | O_NONBLOCK) != 0)
      return false;
    thread = std::thread([this] { serve(); });
    return true;
  }

  unsigned port() const override {
    sockaddr_in its{};
    socklen_t size = sizeof(its);
    getsockname(listener, reinterpret_cast<sockaddr *>(&its), &size);
    return ntohs(its.sin_port);
  }

  void show(StringRef svg, StringRef said) override {
    std::lock_guard lock(mutex);
    isRight = !svg.empty();
    if (isRight)
      figure = llvm::json::fixUTF8(svg);
    messages = llvm::json::fixUTF8(said);
    ++round;
    wake();
  }

private:
  void wake() { (void)!write(wakes[1], "", 1); }

  void serve() {
    while (!isOver) {
      std::vector<pollfd> all = {{listener, POLLIN, 0}, {wakes[0], POLLIN, 0}};
      for (const Connection &each : connections)
        all.push_back({each.socket, short(POLLIN | (each.out.empty() ? 0 : POLLOUT)), 0});
      if (poll(all.data(), all.size(), -1) < 0)
        continue;
      if (all[1].revents)
        tellFollowers();
      const pollfd *its = &all[2];
      connections.remove_if([&](Connection &each) {
        bool ends = (its++->revents & (POLLIN | POLLHUP | POLLERR)) && !receive(each);
        ends = ends || !send(each);
        return ends && close(each.socket) == 0;
      });
      if (all[0].revents)
        accept();
    }
  }

  void accept() {
    int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket >= 0 && connections.size() >= kMostConnections)
      close(socket);
    else if (socket >= 0)
      connections.push_back({socket, "", ""});
  }

  /// What a browser that does not read has not got in time is left out: the next number says all.
  void tellFollowers() {
    char read[64];
    while (::read(wakes[0], read, sizeof(read)) > 0)
      ;
    std::lock_guard lock(mutex);
    for (Connection &each : connections)
      if (each.follows && each.out.size() < kMostUnsent)
        each.out += "data: " + std::to_string(round) + "\n\n";
  }

  /// False if the connection is to end.
  bool receive(Connection &from) {
    char bytes[4096];
    ssize_t size = recv(from.socket, bytes, sizeof(bytes), 0);
    if (size <= 0)
      return size < 0 && (errno == EAGAIN || errno == EINTR);
    if (from.follows || from.isAnswered)
      return true;
    from.in.append(bytes, size);
    if (from.in.size() > kMostHead)
      reply(from, "431 Request Header Fields Too Large", "text/plain", "the head is too long\n");
    else if (size_t end = from.in.find("\r\n\r\n"); end != std::string::npos)
      answer(from, StringRef(from.in).take_front(end));
    return true;
  }

  /// False if the connection is to end.
  static bool send(Connection &to) {
    while (!to.out.empty()) {
      ssize_t size = ::send(to.socket, to.out.data(), to.out.size(), MSG_NOSIGNAL);
      if (size < 0)
        return errno == EAGAIN || errno == EINTR;
      to.out.erase(0, size);
    }
    return !to.isAnswered;
  }

  /// A request to one of this machine's own names, with or without a port.
  static bool isLocal(StringRef head) {
    llvm::SmallVector<StringRef> lines;
    head.split(lines, "\r\n");
    llvm::SmallVector<StringRef> hosts;
    for (StringRef line : llvm::drop_begin(lines))
      if (auto [name, value] = line.split(':'); name.equals_insensitive("host"))
        hosts.push_back(value.trim());
    if (hosts.size() != 1)
      return false;
    auto [name, port] = hosts.front().split(':');
    return (name == "127.0.0.1" || name.equals_insensitive("localhost")) && llvm::all_of(port, llvm::isDigit);
  }

  void answer(Connection &to, StringRef head) {
    auto [method, rest] = head.split(' ');
    StringRef path = rest.take_until([](char c) { return c == ' ' || c == '\r'; });
    if (!isLocal(head))
      return reply(to, "403 Forbidden", "text/plain", "this page is for 127.0.0.1 and localhost\n");
    if (method != "GET")
      return reply(to, "405 Method Not Allowed", "text/plain", "this page is to be read\n");
    if (path == "/")
      return reply(to, "200 OK", "text/html; charset=utf-8", kPage);
    if (path == "/page.js")
      return reply(to, "200 OK", "text/javascript", kScript);
    if (path != "/state" && path != "/events")
      return reply(to, "404 Not Found", "text/plain", "there is one page: /\n");
    std::lock_guard lock(mutex);
    if (path == "/state") {
      llvm::json::Object now{
          {"round", round}, {"title", title}, {"svg", figure}, {"messages", messages}, {"isRight", isRight}};
      std::string text;
      llvm::raw_string_ostream(text) << llvm::json::Value(std::move(now));
      return reply(to, "200 OK", "application/json", text);
    }
    to.follows = true;
    to.out = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n\r\nretry: 300\ndata: " +
             std::to_string(round) + "\n\n";
  }

  static void reply(Connection &to, StringRef status, StringRef type, StringRef body) {
    llvm::raw_string_ostream(to.out)
        << "HTTP/1.1 " << status << "\r\nContent-Type: " << type << "\r\nContent-Length: " << body.size()
        << "\r\nContent-Security-Policy: default-src 'none'; script-src 'self'; connect-src 'self'; img-src data:; "
           "style-src 'unsafe-inline'\r\nX-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin"
           "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        << body;
    to.isAnswered = true;
  }

  int listener, wakes[2] = {-1, -1};
  std::atomic<bool> isOver = false;
  std::thread thread;
  std::list<Connection> connections; ///< of the thread alone
  std::mutex mutex;                  ///< for what follows
  std::string title, figure, messages;
  bool isRight = false;
  int64_t round = 0;
};

} // namespace

std::unique_ptr<PageServer> PageServer::open(unsigned port, StringRef title, std::string &why) {
  sockaddr_in its{};
  its.sin_family = AF_INET;
  its.sin_port = htons(port);
  its.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), yes = 1;
  bool listens = listener >= 0 && setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
                 bind(listener, reinterpret_cast<sockaddr *>(&its), sizeof(its)) == 0 && listen(listener, 64) == 0;
  auto server = std::make_unique<LocalPage>(listener, title);
  if (listens && server->start())
    return server;
  why = std::strerror(errno);
  return nullptr;
}

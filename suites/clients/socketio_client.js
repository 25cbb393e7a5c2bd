const { io } = require("socket.io-client");
const http = require("http");
const base = `http://127.0.0.1:${process.argv[2]}`;
const say = (name, ...values) => console.log(name + ":", ...values.map((value) => JSON.stringify(value)));
const once = (socket, event) => new Promise((done, fail) => {
  socket.once(event, done);
  setTimeout(() => fail(new Error(`no ${event}`)), 15000).unref();
});
const ask = (socket, ...words) => new Promise((done) => socket.emit(...words, done));
async function talk(name, options) {
  const socket = io(base, { forceNew: true, reconnection: false, query: { who: "a b" }, ...options });
  const welcome = await once(socket, "welcome");
  say(`${name} welcome`, welcome);
  say(`${name} echo`, await ask(socket, "echo", { text: "ü", list: [1, null] }));
  const binary = Buffer.alloc(300000, 7);
  const back = await ask(socket, "echo", binary);
  say(`${name} binary`, Buffer.compare(binary, Buffer.from(back)));
  const long = "x".repeat(2000000);
  say(`${name} long`, (await ask(socket, "echo", long)) === long);
  const all = await Promise.all([...Array(200).keys()].map((number) => ask(socket, "echo", number)));
  say(`${name} order`, all.every((value, index) => value === index));
  say(`${name} rooms`, await ask(socket, "join", "r"));
  const told = once(socket, "told");
  socket.emit("tell", "r", "hello");
  say(`${name} told`, await told);
  if (options.upgrade !== false && options.transports === undefined) {
    if (socket.io.engine.transport.name !== "websocket") await once(socket.io.engine, "upgrade");
  }
  say(`${name} transport`, await ask(socket, "transport"));
  const gone = once(socket, "disconnect");
  socket.emit("leave");
  say(`${name} gone`, await gone);
}
async function main() {
  await talk("polling", { transports: ["polling"] });
  await talk("websocket", { transports: ["websocket"] });
  await talk("upgraded", {});
  const guarded = io(`${base}/guarded`, { forceNew: true, reconnection: false, auth: { word: "no" } });
  say("guarded", (await once(guarded, "connect_error")).message);
  const opened = io(`${base}/guarded`, { forceNew: true, reconnection: false, auth: { word: "sesame" } });
  await once(opened, "in");
  say("opened", opened.connected);
  const crowd = await Promise.all([...Array(20).keys()].map(async () => {
    const socket = io(base, { forceNew: true, reconnection: false });
    await once(socket, "welcome");
    await ask(socket, "join", "crowd");
    return socket;
  }));
  const heard = crowd.map((socket) => once(socket, "told"));
  crowd[0].emit("tell", "crowd", "all");
  say("crowd", (await Promise.all(heard)).length);
  http.get(base + "/else", (response) => {
    response.setEncoding("utf8");
    response.on("data", (text) => say("else", response.statusCode, text));
    response.on("end", () => process.exit(0));
  });
}
main().catch((error) => { say("failed", String(error)); process.exit(1); });

// A server of socket.io with rooms, acknowledgements, binary content and namespaces.
const { createServer } = require("http");
const { Server } = require("socket.io");
const http = createServer((request, response) => response.end("plain"));
const io = new Server(http, { maxHttpBufferSize: 1e8, pingInterval: 5000 });
io.on("connection", (socket) => {
  socket.emit("welcome", { via: socket.conn.transport.name, forwarded: socket.handshake.headers["x-forwarded-for"], query: socket.handshake.query.who });
  socket.on("echo", (value, answer) => answer(value));
  socket.on("join", (room, answer) => { socket.join(room); answer([...socket.rooms].length); });
  socket.on("tell", (room, text) => io.to(room).emit("told", text));
  socket.on("transport", (answer) => answer(socket.conn.transport.name));
  socket.on("leave", () => socket.disconnect(true));
});
io.of("/guarded").use((socket, next) => socket.handshake.auth.word === "sesame" ? next() : next(new Error("no entry")));
io.of("/guarded").on("connection", (socket) => socket.emit("in"));
http.listen(process.argv[2], "127.0.0.1");

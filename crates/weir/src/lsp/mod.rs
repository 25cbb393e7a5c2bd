//! `weir lsp`: a language server for configurations, on standard input and output.
//!
//! ```text
//! here         the messages: what an editor asks, and the answers as JSON
//! open_files   the texts in the editor, positions (UTF-16), URIs
//! workspace    which configuration a file belongs to; reading it as `-t` does
//! answers      completion, help, definitions: from the rows and the tree
//! ```
//!
//! What an editor may send, and what it gets:
//!
//! ```text
//! initialize, shutdown, exit                   by lsp-server
//! textDocument/didOpen, didChange, didClose    the text; then publishDiagnostics for each file concerned
//! textDocument/didSave                         the same: files that are not open may have changed, too
//! textDocument/completion                      directives of the context, variables after `$`, names, parameters
//! textDocument/hover                           what `weir help` says
//! textDocument/definition                      include, upstream, variable, named location
//! textDocument/formatting                      what `weir fmt` writes
//! ```
//!
//! Texts come whole with each change: a configuration is small, and a server that applies differences can lose its place.
//!
//! The configuration is read by the code that starts servers, from the texts in the editor and the files on the disk. It
//! opens no log and no socket, and runs no script, like `weir check`.

mod answers;
mod open_files;
mod workspace;

use std::path::PathBuf;

use lexopt::prelude::*;
use lsp_server::{Connection, Message, Notification, Request, RequestId, Response};
use serde_json::{Value, json};

use crate::command_hints::unexpected;
use crate::commands;
use crate::terminal;
use open_files::{EditorText, TextPosition, path_of_uri, uri_of_path};
use workspace::ConfigurationWorkspace;

/// The parsed command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LspArguments {
    /// `-c`: for files that are included from somewhere else.
    configuration: Option<PathBuf>,
}

/// Reads the arguments after `lsp`.
pub(crate) fn parse(mut parser: lexopt::Parser) -> Result<LspArguments, String> {
    let mut arguments = LspArguments::default();
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Short('c') => {
                let file = parser.value().map_err(|error| error.to_string())?;
                arguments.configuration = Some(file.into());
            }
            // Editors add it, whether a server wants it or not.
            Long("stdio") => {}
            other => return Err(unexpected(&commands::LSP, other)),
        }
    }
    Ok(arguments)
}

/// Serves until the editor ends. Returns the exit code.
pub(crate) fn run(arguments: &LspArguments) -> i32 {
    let (connection, threads) = Connection::stdio();
    let outcome = serve(&connection, arguments);
    // The writing thread ends when nothing can come from here any more.
    drop(connection);
    let ended = threads.join().map_err(|error| error.to_string());
    match outcome.and(ended) {
        Ok(()) => 0,
        Err(error) => {
            terminal::report_line(format_args!("weir: {error}"));
            1
        }
    }
}

/// The conversation: a handshake, then requests and notifications in their order, until `shutdown`.
///
/// Each message is answered before the next is read. A change takes a few milliseconds, so nothing is gained by threads, and
/// an answer is always about the text that the editor had when it asked.
fn serve(connection: &Connection, arguments: &LspArguments) -> Result<(), String> {
    let capabilities = json!({
        "positionEncoding": "utf-16",
        "textDocumentSync": { "openClose": true, "change": 1, "save": true },
        "completionProvider": { "triggerCharacters": ["$", "@"] },
        "hoverProvider": true,
        "definitionProvider": true,
        "documentFormattingProvider": true,
    });
    connection
        .initialize(capabilities)
        .map_err(|error| error.to_string())?;
    let mut server = LanguageServer {
        workspace: ConfigurationWorkspace::new(arguments.configuration.as_deref()),
    };
    for message in &connection.receiver {
        match message {
            Message::Request(request) => {
                let ends = connection
                    .handle_shutdown(&request)
                    .map_err(|error| error.to_string())?;
                if ends {
                    return Ok(());
                }
                let response = server.answer(request);
                // An editor that is gone needs no answer; the next message will not come.
                let _ = connection.sender.send(Message::Response(response));
            }
            Message::Notification(notification) => {
                for changed in server.notice(&notification) {
                    let _ = connection.sender.send(Message::Notification(changed));
                }
                server.workspace.drop_spent();
            }
            Message::Response(_) => {}
        }
    }
    Ok(())
}

/// What is known between two messages.
struct LanguageServer {
    workspace: ConfigurationWorkspace,
}

impl LanguageServer {
    /// Answers a request. What cannot be answered is `null`, as the protocol has it.
    fn answer(&mut self, request: Request) -> Response {
        let Request { id, method, params } = request;
        let result = match method.as_str() {
            "textDocument/completion" => self
                .at(&params)
                .map(|(file, offset)| answers::completion(&self.workspace, file, offset)),
            "textDocument/hover" => self
                .at(&params)
                .and_then(|(file, offset)| answers::hover(file, offset)),
            "textDocument/definition" => self
                .at(&params)
                .map(|(file, offset)| self.definition(file, offset)),
            "textDocument/formatting" => self.formatting(&params),
            _ => return unknown(id, &method),
        };
        Response::new_ok(id, result.unwrap_or(Value::Null))
    }

    /// The text and the offset in it that a request is about.
    fn at(&self, params: &Value) -> Option<(&EditorText, usize)> {
        let file = self.file(params)?;
        let number = |name: &str| params["position"][name].as_u64();
        let position = TextPosition {
            line: u32::try_from(number("line")?).ok()?,
            character: u32::try_from(number("character")?).ok()?,
        };
        Some((file, file.offset(position)))
    }

    /// The open file that a request names. Requests about others are not answered: editors open what they ask about.
    fn file(&self, params: &Value) -> Option<&EditorText> {
        let path = path_of_uri(params["textDocument"]["uri"].as_str()?)?;
        self.workspace.open_file(&path)
    }

    /// All places where the word is defined: a variable may be set in several.
    fn definition(&self, file: &EditorText, offset: usize) -> Value {
        let found = self.workspace.definitions(file, offset);
        let found = found
            .into_iter()
            .map(|(path, range)| json!({ "uri": uri_of_path(&path), "range": range }));
        Value::Array(found.collect())
    }

    /// The whole text is replaced, unless it is in the layout already or does not parse.
    fn formatting(&self, params: &Value) -> Option<Value> {
        let file = self.file(params)?;
        let formatted = conf::layout::format_text(&file.path, &file.text).ok()?;
        if formatted == file.text {
            return Some(json!([]));
        }
        let range = file.range(0, file.text.len());
        let text = String::from_utf8_lossy(&formatted);
        Some(json!([{ "range": range, "newText": text }]))
    }

    /// Takes a change. Returns the messages about the files that it concerns.
    fn notice(&mut self, notification: &Notification) -> Vec<Notification> {
        let params = &notification.params;
        let document = &params["textDocument"];
        let Some(path) = document["uri"].as_str().and_then(path_of_uri) else {
            return Vec::new();
        };
        match notification.method.as_str() {
            "textDocument/didOpen" => {
                let text = document["text"].as_str().unwrap_or_default();
                self.workspace.set_text(path, text);
            }
            "textDocument/didChange" => {
                // The whole text, as the capabilities ask for; the last one counts.
                let changes = params["contentChanges"].as_array();
                let text = changes.and_then(|list| list.last()?["text"].as_str());
                self.workspace.set_text(path, text.unwrap_or_default());
            }
            "textDocument/didClose" => self.workspace.close(&path),
            "textDocument/didSave" => self.workspace.read_again(&path),
            _ => return Vec::new(),
        }
        let changed = self.workspace.take_diagnostics();
        let messages = changed.into_iter().map(|(path, diagnostics)| Notification {
            method: "textDocument/publishDiagnostics".to_owned(),
            params: json!({ "uri": uri_of_path(&path), "diagnostics": diagnostics }),
        });
        messages.collect()
    }
}

/// The error for a method that this server does not have (JSON-RPC 2.0, section 5.1).
fn unknown(id: RequestId, method: &str) -> Response {
    const METHOD_NOT_FOUND: i32 = -32601;
    Response::new_err(id, METHOD_NOT_FOUND, format!("unknown method {method}"))
}

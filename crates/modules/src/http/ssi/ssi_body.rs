//! Executes the commands of a page in order; the result is the body of the response.
//!
//! It looks ahead: text and includes are put into a queue, and all includes in the queue run
//! concurrently, so that a page takes as long as the slowest of them, not as long as all together.
//! The queue is bounded. A command that has to wait for an include (`wait`, `set`) stops the
//! look-ahead until that include is complete.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bstr::{BStr, BString, ByteSlice};
use bytes::{Buf, Bytes};
use http::Request;
use http::response_body::{BodyChunk, BodyError, BodySource, ResponseBody};
use http::subrequest::{self, IncludedSubrequest, SubrequestOptions, SubrequestStub};
use proto::uri::EscapeClass;

use super::commands::{self, SsiCommandKind};
use super::condition;
use super::date::TimeFormat;
use super::scanner::{MARK, ScanEvent, SsiCommand, SsiScanner};
use super::shared_page::{self, SsiPage};
use crate::shared::content::{ContentPiece, ContentReader};
use crate::shared::transform::poll_yield;

/// The number of includes of a page that may run at once. Beyond that, each part of the page may
/// still run one, so that it makes progress.
const MAX_AHEAD: usize = 32;

/// The amount of text in the queue at which the look-ahead pauses, in bytes.
const MAX_TEXT: usize = 64 * 1024;

/// The maximum nesting depth of `if`.
const MAX_BRANCHES: usize = 64;

/// The maximum size of a block, in bytes.
const MAX_BLOCK: usize = 1024 * 1024;

/// The amount of content scanned between two looks at the clock, in bytes.
const STEP: usize = 16 * 1024;

/// A body whose commands are executed as it is read.
pub(super) struct SsiBody {
    content: ContentReader,
    scanner: SsiScanner,
    silent_errors: bool,
    /// Content that has not been scanned yet.
    input: Bytes,
    /// The open `if`s, outermost first.
    branches: Vec<IfBranch>,
    /// The open block: its name and its content so far.
    block: Option<(BString, Vec<u8>)>,
    /// How `echo` encodes values; stays until the next `encoding` parameter.
    encoding: EchoEncoding,
    /// `config errmsg`.
    error_text: BString,
    queue: VecDeque<QueuedPart>,
    /// The number of bytes of text in the queue.
    text: usize,
    /// The number of includes in the queue.
    includes: usize,
    wait: SsiWait,
    /// The end of the content, once it was reached.
    end: Option<Result<(), BodyError>>,
    page: Rc<SsiPage>,
}

/// A part of the page in the queue.
enum QueuedPart {
    Text(Vec<u8>),
    Flush,
    Include(IncludedSubrequest),
}

/// What the look-ahead waits for.
enum SsiWait {
    Nothing,
    /// For the whole queue to be sent: `wait="yes"`.
    QueueSent,
    /// For an include whose content is assigned to a variable: `set`.
    Variable(Box<VariableInclude>),
}

/// An include whose content is assigned to a variable.
struct VariableInclude {
    name: BString,
    inclusion: IncludedSubrequest,
    /// The body of the include, once its response is there.
    content: Option<ContentReader>,
    /// What has been gathered.
    value: Vec<u8>,
}

/// An `if` up to its `endif`.
struct IfBranch {
    /// Whether the current branch of this `if` is shown.
    is_shown: bool,
    /// Whether one of its branches has been shown.
    is_chosen: bool,
    has_else: bool,
}

/// How `echo` encodes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EchoEncoding {
    None,
    Url,
    Entity,
}

impl SsiBody {
    /// Executes the commands in `body`.
    pub(super) fn new(
        body: ResponseBody,
        page: Rc<SsiPage>,
        max_value: usize,
        silent_errors: bool,
    ) -> SsiBody {
        SsiBody {
            content: ContentReader::new(body),
            scanner: SsiScanner::new(max_value),
            silent_errors,
            input: Bytes::new(),
            branches: Vec::new(),
            block: None,
            encoding: EchoEncoding::Entity,
            error_text: "[an error occurred while processing the directive]".into(),
            queue: VecDeque::new(),
            text: 0,
            includes: 0,
            wait: SsiWait::Nothing,
            end: None,
            page,
        }
    }

    /// Looks ahead as long as there is content, and room in the queue.
    fn look_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        while self.may_look_ahead(request) {
            if !self.input.is_empty() {
                // A page of commands can take long without ever waiting: other requests of the loop have their turn
                // in between.
                if self.page.is_turn_over() {
                    return poll_yield(context);
                }
                self.scan(request);
                continue;
            }
            match self.content.poll_next(request, context) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(ContentPiece::Bytes(bytes)))) => self.input = bytes,
                Poll::Ready(Some(Ok(ContentPiece::Flush))) => {
                    self.queue.push_back(QueuedPart::Flush)
                }
                // What is in the queue is still sent before the response breaks off.
                Poll::Ready(Some(Err(error))) => self.end = Some(Err(error)),
                Poll::Ready(None) => {
                    if let Some(ScanEvent::HeldMark(held)) = self.scanner.end() {
                        self.write(&MARK[..held]);
                    }
                    // Open `if`s and blocks simply end here.
                    self.end = Some(Ok(()));
                }
            }
        }
    }

    /// Whether to look further ahead: not past the end or a wait, nor with a full queue.
    fn may_look_ahead(&self, request: &Request) -> bool {
        self.end.is_none()
            && matches!(self.wait, SsiWait::Nothing)
            && self.text < MAX_TEXT
            && (self.includes == 0 || subrequest::included_count(request) < MAX_AHEAD)
    }

    /// Scans one step of the content, or up to the next include.
    fn scan(&mut self, request: &mut Request) {
        let step = self.input.slice(..self.input.len().min(STEP));
        let mut at = 0;
        let includes = self.includes;
        while matches!(self.wait, SsiWait::Nothing)
            // Stops at each include: whether there is room for another one is decided again in between.
            && self.includes == includes
            && let Some(event) = self.scanner.next(&step, &mut at)
        {
            match event {
                ScanEvent::Text(range) => self.write(&step[range]),
                ScanEvent::HeldMark(held) => self.write(&MARK[..held]),
                ScanEvent::Invalid(why) => self.fail(request, &why),
                ScanEvent::Command(command) => {
                    if let Err(why) = self.command(request, &command) {
                        self.fail(request, &why);
                    }
                }
            }
        }
        self.input.advance(at);
    }

    /// Whether output is shown here: every enclosing `if` is in its chosen branch.
    fn is_shown(&self) -> bool {
        self.branches.iter().all(|branch| branch.is_shown)
    }

    /// Adds text, or the output of a command, to the open block or the queue.
    fn write(&mut self, text: &[u8]) {
        if !self.is_shown() {
            return;
        }
        if let Some((_, block)) = &mut self.block {
            // A block beyond the bound is refused at its end; until then it need not grow further.
            if block.len() <= MAX_BLOCK {
                block.extend_from_slice(text);
            }
            return;
        }
        self.text += text.len();
        match self.queue.back_mut() {
            Some(QueuedPart::Text(last)) => last.extend_from_slice(text),
            _ if text.is_empty() => {}
            _ => self.queue.push_back(QueuedPart::Text(text.to_vec())),
        }
    }

    /// Logs why a command failed, and shows the error text in its place.
    fn fail(&mut self, request: &Request, why: &str) {
        if !self.is_shown() {
            return;
        }
        if !why.is_empty() {
            request.error(format_args!("{why}"));
        }
        // `ssi_silent_errors` hides the text only; the log has the reason in any case.
        if !self.silent_errors {
            let text = self.error_text.clone();
            self.write(&text);
        }
    }

    /// Executes a command, or stores it in the open block. The error is for the log.
    fn command(&mut self, request: &mut Request, command: &SsiCommand) -> Result<(), String> {
        let kind = match commands::kind(command) {
            // In a branch that is not shown, mistakes are not shown either.
            Err(_) if !self.is_shown() => return Ok(()),
            other => other?,
        };
        if let Some((_, block)) = &mut self.block
            && kind != SsiCommandKind::Endblock
        {
            // Commands in a block are executed when the block is used as a `stub`.
            if block.len() <= MAX_BLOCK {
                command.write(block);
            }
            return Ok(());
        }
        match kind {
            // These are followed even in hidden branches, to find the matching `endif`.
            SsiCommandKind::If => return self.begin_if(request, command),
            SsiCommandKind::Elif => return self.elif(request, command),
            SsiCommandKind::Else => return self.begin_else(command),
            SsiCommandKind::Endif => {
                let closed = self.branches.pop().map(|_| ());
                return closed.ok_or_else(|| out_of_place(command));
            }
            _ if !self.is_shown() => return Ok(()),
            _ => {}
        }
        // Only now: in hidden branches and stored blocks a wrong parameter is no error, as in nginx.
        commands::check(command)?;
        match kind {
            SsiCommandKind::Include => self.include(request, command),
            SsiCommandKind::Echo => {
                self.echo(request, command);
                Ok(())
            }
            SsiCommandKind::Config => {
                if let Some(format) = command.get("timefmt") {
                    request.set_state(TimeFormat(format.to_owned()));
                }
                if let Some(text) = command.get("errmsg") {
                    self.error_text = text.to_owned();
                }
                Ok(())
            }
            SsiCommandKind::Set => {
                let value = shared_page::evaluate(request, command.value("value"))?;
                self.page.set(command.value("var"), value)
            }
            SsiCommandKind::Block => {
                self.block = Some((command.value("name").to_owned(), Vec::new()));
                Ok(())
            }
            SsiCommandKind::Endblock => self.end_block(),
            SsiCommandKind::If
            | SsiCommandKind::Elif
            | SsiCommandKind::Else
            | SsiCommandKind::Endif => Ok(()),
        }
    }

    /// `if`: evaluates the expression and opens a branch.
    fn begin_if(&mut self, request: &mut Request, command: &SsiCommand) -> Result<(), String> {
        // The bound is on memory: an endless page of `if`s would grow the stack of branches for ever.
        if self.branches.len() == MAX_BRANCHES {
            return Err("too many \"if\" commands inside one another".to_owned());
        }
        let is_shown = self.is_shown();
        // In a hidden branch nothing is shown, so there is nothing to evaluate.
        let mut branch = IfBranch {
            is_shown: false,
            is_chosen: !is_shown,
            has_else: false,
        };
        let judged = match is_shown {
            true => evaluate_condition(request, command),
            false => Ok(false),
        };
        branch.is_shown = judged.as_ref().is_ok_and(|holds| *holds);
        branch.is_chosen |= branch.is_shown;
        match judged {
            Ok(_) => {
                self.branches.push(branch);
                Ok(())
            }
            Err(why) => {
                // The error text appears at the `if`; its content stays hidden.
                self.fail(request, &why);
                self.branches.push(branch);
                Ok(())
            }
        }
    }

    /// `elif`: evaluates its expression unless an earlier branch was chosen.
    fn elif(&mut self, request: &mut Request, command: &SsiCommand) -> Result<(), String> {
        let Some(branch) = self.branches.last_mut().filter(|branch| !branch.has_else) else {
            return Err(out_of_place(command));
        };
        // Before the expression is evaluated: if that fails, the branch stays hidden.
        branch.is_shown = false;
        if branch.is_chosen {
            return Ok(());
        }
        let holds = evaluate_condition(request, command)?;
        branch.is_shown = holds;
        branch.is_chosen = holds;
        Ok(())
    }

    /// `else`: shown if no earlier branch was.
    fn begin_else(&mut self, command: &SsiCommand) -> Result<(), String> {
        let Some(branch) = self.branches.last_mut().filter(|branch| !branch.has_else) else {
            return Err(out_of_place(command));
        };
        branch.is_shown = !branch.is_chosen;
        branch.is_chosen = true;
        branch.has_else = true;
        Ok(())
    }

    /// `endblock`: stores the block. Without a `block` it has no effect.
    fn end_block(&mut self) -> Result<(), String> {
        let Some((name, content)) = self.block.take() else {
            return Ok(());
        };
        self.page.keep_block(name, content)
    }

    /// `echo`: writes the value of a variable.
    fn echo(&mut self, request: &mut Request, command: &SsiCommand) {
        let value = shared_page::variable(request, command.value("var"));
        let value = match (&value, command.get("default")) {
            (Some(value), _) => value.as_bstr(),
            (None, Some(default)) => default,
            (None, None) => BStr::new("(none)"),
        };
        // Also skips the `encoding` parameter, as nginx does.
        if value.is_empty() {
            return;
        }
        if let Some(encoding) = command.get("encoding") {
            match encoding.as_bytes() {
                b"none" => self.encoding = EchoEncoding::None,
                b"url" => self.encoding = EchoEncoding::Url,
                b"entity" => self.encoding = EchoEncoding::Entity,
                _ => request.error(format_args!(
                    "unknown encoding \"{encoding}\" in the \"echo\" command"
                )),
            }
        }
        let mut out = Vec::new();
        match self.encoding {
            EchoEncoding::None => return self.write(value),
            EchoEncoding::Url => proto::uri::escape(EscapeClass::Html, value, &mut out),
            EchoEncoding::Entity => http::text::write_html(value, &mut out),
        }
        self.write(&out);
    }

    /// `include`: starts the subrequest and puts it into the queue, or waits for it with `set`.
    fn include(&mut self, request: &mut Request, command: &SsiCommand) -> Result<(), String> {
        let (target, waits) = include_target(command)?;
        let path = shared_page::evaluate_path(request, target)?;
        let mut decoded = Vec::new();
        // The path may contain values from the client, so it is checked like a request's: no way
        // out of the root.
        let args = match proto::uri::parse_internal(&path, &mut decoded) {
            Ok(args) => path[args].to_vec(),
            Err(_) => return Err(format!("unsafe URI \"{path}\" was detected")),
        };
        let page = shared_page::page_of(request);
        let stub = match command.get("stub") {
            None => None,
            Some(name) => {
                let found = page.block(name);
                let content = found
                    .ok_or_else(|| format!("\"stub\"=\"{name}\" for \"include\" not found"))?;
                Some(SubrequestStub {
                    content_type: request.out.content_type.clone(),
                    content,
                })
            }
        };
        let options = SubrequestOptions {
            stub,
            // A form that is sent to a page concerns what the page includes: `REQUEST_METHOD` and `CONTENT_LENGTH` are the client's.
            body: request.body.for_included(),
            ..SubrequestOptions::get(decoded, args)
        };
        let Some(inclusion) = IncludedSubrequest::new(request, options) else {
            // The reason was logged already.
            return Err(String::new());
        };
        match command.get("set") {
            Some(name) => {
                // The variable exists from here on, even if the include fails.
                page.declare(name)?;
                let name = name.to_owned();
                self.wait = SsiWait::Variable(Box::new(VariableInclude {
                    name,
                    inclusion,
                    content: None,
                    value: Vec::new(),
                }));
            }
            None => {
                self.includes += 1;
                self.queue.push_back(QueuedPart::Include(inclusion));
                if waits {
                    self.wait = SsiWait::QueueSent;
                }
            }
        }
        Ok(())
    }

    /// Drives all includes. `Ready` if a wait is over and the look-ahead may continue.
    fn run_includes(&mut self, request: &mut Request, context: &mut Context<'_>) -> Poll<()> {
        for item in &mut self.queue {
            if let QueuedPart::Include(inclusion) = item {
                // All of them, not only the first: that they run at the same time is the point of the queue.
                inclusion.poll_ahead(context);
            }
        }
        let SsiWait::Variable(gathering) = &mut self.wait else {
            return Poll::Pending;
        };
        match ready!(gathering.poll(context)) {
            Ok(value) => {
                if let Some(value) = value
                    && let Err(why) = self.page.set(gathering.name.as_bstr(), value)
                {
                    request.error(format_args!("{why}"));
                }
            }
            Err(error) => self.end = Some(Err(error)),
        }
        self.wait = SsiWait::Nothing;
        Poll::Ready(())
    }

    /// The next chunk of the queue. `Pending`: its first item is not ready, or it is empty.
    fn poll_queue(&mut self, context: &mut Context<'_>) -> Poll<Result<BodyChunk, BodyError>> {
        while let Some(item) = self.queue.front_mut() {
            let chunk = match item {
                QueuedPart::Text(text) => {
                    self.text -= text.len();
                    Some(Ok(BodyChunk::Bytes(std::mem::take(text).into())))
                }
                // In its place among the texts, or it would flush too early.
                QueuedPart::Flush => Some(Ok(BodyChunk::Flush)),
                QueuedPart::Include(inclusion) => {
                    if let Some(chunk) = ready!(inclusion.poll_next(context)) {
                        return Poll::Ready(chunk);
                    }
                    // Its end makes room for another one.
                    self.includes -= 1;
                    None
                }
            };
            self.queue.pop_front();
            if let Some(chunk) = chunk {
                return Poll::Ready(chunk);
            }
        }
        Poll::Pending
    }
}

impl BodySource for SsiBody {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        loop {
            self.look_ahead(request, context);
            if self.run_includes(request, context).is_ready() {
                continue;
            }
            let includes = self.includes;
            if let Poll::Ready(chunk) = self.poll_queue(context) {
                return Poll::Ready(Some(chunk));
            }
            if self.queue.is_empty() {
                if let Some(end) = self.end.take() {
                    return Poll::Ready(end.err().map(Err));
                }
                if matches!(self.wait, SsiWait::QueueSent) {
                    self.wait = SsiWait::Nothing;
                    continue;
                }
            }
            // An include ended, so there is room to look further ahead.
            if self.includes < includes {
                continue;
            }
            return Poll::Pending;
        }
    }

    /// While an include that becomes a variable is awaited, the head must not leave: if it is too
    /// large, there is no response.
    fn is_undecided(&self) -> bool {
        self.queue.is_empty() && matches!(self.wait, SsiWait::Variable(_))
    }

    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        loop {
            self.look_ahead(request, context);
            if self.run_includes(request, context).is_pending() {
                break;
            }
        }
        // The content's own source may have work to do in advance as well, such as a proxied response that is
        // buffered.
        self.content.poll_ahead(request, context);
    }
}

impl VariableInclude {
    /// Gathers the whole content of the include; `None` if the response is an error.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<BString>, BodyError>> {
        ready!(self.inclusion.poll_response(context));
        let Some(request) = self.inclusion.request_mut() else {
            return Poll::Ready(Ok(None));
        };
        let limit = request
            .site
            .location(request.location)
            .core
            .subrequest_output_buffer_size;
        let content = self
            .content
            .get_or_insert_with(|| ContentReader::new(std::mem::take(&mut request.out.body)));
        loop {
            match ready!(content.poll_next(request, context)) {
                None => break,
                Some(Err(error)) => return Poll::Ready(Err(error)),
                Some(Ok(ContentPiece::Flush)) => {}
                Some(Ok(ContentPiece::Bytes(bytes))) => self.value.extend_from_slice(&bytes),
            }
            let length = self.value.len();
            // nginx's bound for responses that have to be in memory as a whole.
            if length as u64 > limit {
                request.error(format_args!("too big subrequest response: {length}"));
                return Poll::Ready(Err(BodyError::Withdrawn));
            }
        }
        // As in nginx, an error page does not become the value of a variable.
        let is_error = request.out.status >= 300;
        Poll::Ready(Ok(
            (!is_error).then(|| std::mem::take(&mut self.value).into())
        ))
    }
}

/// Evaluates the expression of an `if` or `elif`.
fn evaluate_condition(request: &mut Request, command: &SsiCommand) -> Result<bool, String> {
    commands::check(command)?;
    condition::holds(request, command.value("expr"))
}

/// The target of an `include`, and whether it must be complete before the page continues.
fn include_target(command: &SsiCommand) -> Result<(&BStr, bool), String> {
    let waits = command.get("wait");
    let (target, waits) = match (command.get("virtual"), command.get("file")) {
        (Some(path), Some(file)) => {
            return Err(format!(
                "inclusion may be either virtual=\"{path}\" or file=\"{file}\""
            ));
        }
        (None, None) => return Err("no parameter in \"include\" SSI command".to_owned()),
        (None, Some(file)) if waits.is_some() => {
            return Err(format!("\"wait\" cannot be used with file=\"{file}\""));
        }
        // nginx waits for `file`, too.
        (None, Some(file)) => (file, true),
        (Some(path), None) => match waits {
            None => (path, false),
            Some(word) if word.eq_ignore_ascii_case(b"no") => (path, false),
            Some(word) if word.eq_ignore_ascii_case(b"yes") => (path, true),
            Some(word) => {
                return Err(format!(
                    "invalid value \"{word}\" in the \"wait\" parameter"
                ));
            }
        },
    };
    if command.get("set").is_some() && command.get("stub").is_some() {
        return Err(
            "\"set\" and \"stub\" cannot be used together in \"include\" SSI command".to_owned(),
        );
    }
    Ok((target, waits))
}

/// The error of a command without its counterpart, such as an `else` without `if`.
fn out_of_place(command: &SsiCommand) -> String {
    format!("invalid context of SSI command: \"{}\"", command.name)
}

//! Request bodies that scripts supply: from a file (`ngx.req.set_body_file`), or piece by piece (`ngx.req.init_body`,
//! `append_body`, `finish_body`), where the pieces go to a temporary file once they exceed a buffer.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::rc::Rc;

use bstr::ByteSlice;
use http::body_reader::{RequestBody, TemporaryFile, create_temporary};

use super::CallResult;
use super::arguments::{as_int, bad, count, number, text};
use super::request::{replace_body, was_read};
use crate::luajit::stack::LuaType;
use crate::luajit::{LuaStack, LuaValue, fail};
use crate::operation::YieldOperation;
use crate::scope;

/// Request state: a file that is to become the body. Opening it needs a thread of the pool, installing it the request,
/// so these are two calls.
struct OfferedFile(Rc<RefCell<Option<RequestBody>>>);

/// Opens a file that becomes the body: its name, and whether to remove it afterwards. `take_file` completes it.
pub(super) fn open_file(stack: &LuaStack) -> CallResult {
    count(stack, 1..=2, "1 or 2 arguments")?;
    let name = text(stack, 1)?;
    if stack.top() == 2 && stack.type_at(2) != LuaType::Boolean {
        let kind = stack.type_at(2).name();
        return bad(stack, 2, &format!("boolean expected, got {kind}"));
    }
    let once = stack.boolean(2);
    let slot = Rc::new(RefCell::new(None));
    scope::with_request(|request| {
        if !request.body.is_complete() || !was_read(request) {
            return fail("request body not read yet");
        }
        request.set_state(OfferedFile(Rc::clone(&slot)));
        Ok(())
    })??;
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(&name));
    super::wait(YieldOperation::task(async move {
        match open(path, once).await {
            Ok(body) => {
                *slot.borrow_mut() = Some(body);
                vec![LuaValue::Boolean(true)]
            }
            Err(error) => {
                let name = name.as_bstr();
                LuaValue::failure(format!("open() \"{name}\" failed: {error}"))
            }
        }
    }))
}

async fn open(path: PathBuf, once: bool) -> io::Result<RequestBody> {
    let pool = rt::pool::default_pool();
    let file = rt::file::open(&path, rt::file::OpenOptions::READ, &pool).await?;
    let length = file.metadata()?.len;
    let file = TemporaryFile::new(file, path, once);
    Ok(RequestBody::from_file(Rc::new(file), length))
}

/// Makes the file of the last `open_file` or `finish_body` the body.
pub(super) fn take_file(_stack: &LuaStack) -> CallResult {
    scope::with_request(|request| {
        let offered = request
            .state::<OfferedFile>()
            .and_then(|offered| offered.0.take());
        if let Some(body) = offered {
            replace_body(request, body);
        }
        super::NONE
    })?
}

/// Request state: a body that a script builds piece by piece.
struct BodyBuilder {
    /// How much stays in memory, in bytes.
    buffer_size: usize,
    memory: Vec<u8>,
    /// What has gone, or is going, to the file, in bytes.
    spooled: u64,
    file: Rc<BuilderFile>,
}

/// What exceeds the buffer of a [`BodyBuilder`].
#[derive(Default)]
struct BuilderFile {
    file: RefCell<Option<Rc<TemporaryFile>>>,
    /// A write is under way, or was aborted: what the file holds is not known then.
    is_writing: Cell<bool>,
}

/// `ngx.req.init_body(buffer_size)`, by default `client_body_buffer_size`.
pub(super) fn init_body(stack: &LuaStack) -> CallResult {
    count(stack, 0..=1, "0 or 1 argument")?;
    if !scope::with_request(was_read)? {
        return fail("request body not read yet");
    }
    let size = match stack.top() {
        1 => Some(as_int(number(stack, 1)?)),
        _ => None,
    };
    scope::with_request(|request| {
        let buffer_size = match size.map(|size| (size, usize::try_from(size))) {
            None => request.core().client_body_buffer_size as usize,
            Some((_, Ok(size))) => size,
            Some((size, Err(_))) => return fail(format!("bad size argument: {size}")),
        };
        request.set_state(BodyBuilder {
            buffer_size,
            memory: Vec::new(),
            spooled: 0,
            file: Rc::default(),
        });
        super::NONE
    })?
}

/// `ngx.req.append_body(data)`.
pub(super) fn append_body(stack: &LuaStack) -> CallResult {
    count(stack, 1..=1, "1 arguments")?;
    let piece = text(stack, 1)?;
    let writing = scope::with_request(|request| {
        let folder = request.core().client_body_temp_path.clone();
        let Some(builder) = request.state::<BodyBuilder>() else {
            return fail("request_body not initialized");
        };
        if builder.file.is_writing.get() {
            return fail("another thread appends to the request body");
        }
        builder.memory.extend_from_slice(&piece);
        Ok((builder.memory.len() > builder.buffer_size).then(|| builder.spool(folder)))
    })??;
    match writing {
        None => super::NONE,
        Some(writing) => super::wait(YieldOperation::task(async move {
            match writing.await {
                Ok(_) => Vec::new(),
                Err(error) => write_failed(&error),
            }
        })),
    }
}

/// `ngx.req.finish_body()`: the pieces become the body. True if `take_file` completes it.
pub(super) fn finish_body(stack: &LuaStack) -> CallResult {
    count(stack, 0..=0, "0 argument")?;
    let slot = Rc::new(RefCell::new(None));
    let writing = scope::with_request(|request| {
        let folder = request.core().client_body_temp_path.clone();
        let Some(builder) = request.state::<BodyBuilder>() else {
            return fail("request_body not initialized");
        };
        if builder.file.is_writing.get() {
            return fail("another thread appends to the request body");
        }
        if builder.spooled == 0 {
            let body = std::mem::take(&mut builder.memory);
            replace_body(request, RequestBody::from_bytes(body));
            return Ok(None);
        }
        let writing = builder.spool(folder);
        let length = builder.spooled;
        request.set_state(OfferedFile(Rc::clone(&slot)));
        Ok(Some((writing, length)))
    })??;
    let Some((writing, length)) = writing else {
        return super::NONE;
    };
    super::wait(YieldOperation::task(async move {
        match writing.await {
            Ok(file) => {
                *slot.borrow_mut() = Some(RequestBody::from_file(file, length));
                vec![LuaValue::Boolean(true)]
            }
            Err(error) => write_failed(&error),
        }
    }))
}

fn write_failed(error: &io::Error) -> Vec<LuaValue> {
    LuaValue::failure(format!("fail to write file: {error}"))
}

impl BodyBuilder {
    /// Appends what is in memory to the file, which is created in `folder` if it is not there.
    fn spool(
        &mut self,
        folder: PathBuf,
    ) -> impl Future<Output = io::Result<Rc<TemporaryFile>>> + use<> {
        let at = self.spooled;
        let data = std::mem::take(&mut self.memory);
        self.spooled += data.len() as u64;
        let target = Rc::clone(&self.file);
        target.is_writing.set(true);
        async move {
            let known = target.file.borrow().clone();
            let file = match known {
                Some(file) => file,
                None => {
                    let (file, path) = create_temporary(&folder, true).await?;
                    let file = Rc::new(TemporaryFile::new(file, path, true));
                    *target.file.borrow_mut() = Some(Rc::clone(&file));
                    file
                }
            };
            let pool = rt::pool::default_pool();
            file.file.write_all_at(data, at, &pool).await?;
            target.is_writing.set(false);
            Ok(file)
        }
    }
}

//! The stack of a Lua thread, by calls that can not raise an error.
//!
//! Places are counted as in Lua's manual: from 1 at the bottom, from -1 at the top.

use std::ffi::{CStr, CString, c_int, c_void};
use std::slice;

use super::ffi;
use super::memory::Memory;
use super::native::{self, Native};

/// The stack of a Lua thread. Whoever holds one sees to it that the state lives.
#[derive(Clone, Copy)]
pub(crate) struct Stack {
    pub(super) l: *mut ffi::lua_State,
}

/// What kind of value stands in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No such place.
    None,
    Nil,
    Boolean,
    LightUserdata,
    Number,
    String,
    Table,
    Function,
    Userdata,
    Thread,
    /// A value of LuaJIT's `ffi`.
    Cdata,
}

impl Kind {
    /// Lua's name of it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::None => "no value",
            Kind::Nil => "nil",
            Kind::Boolean => "boolean",
            Kind::LightUserdata | Kind::Userdata => "userdata",
            Kind::Number => "number",
            Kind::String => "string",
            Kind::Table => "table",
            Kind::Function => "function",
            Kind::Thread => "thread",
            Kind::Cdata => "cdata",
        }
    }
}

/// The registry, as a place.
pub(crate) const REGISTRY: c_int = ffi::LUA_REGISTRYINDEX;

/// The table of globals, as a place.
pub(crate) const GLOBALS: c_int = ffi::LUA_GLOBALSINDEX;

// SAFETY, for every block below: `self.l` is a living state of this thread (the promise of `Stack::new`), each call is
// one that raises nothing when memory is unbounded, which it is while code of ours runs (see the module's page), and
// room on the stack was asked for where values are pushed.
// JUSTIFICATION: this is the seam; without it there is no Lua.
impl Stack {
    /// # Safety
    /// `l` is a state or thread of this thread that lives for as long as the result is used.
    pub(crate) unsafe fn new(l: *mut ffi::lua_State) -> Stack {
        Stack { l }
    }

    /// Makes room for `n` more values; `false` when the stack is at its end.
    pub(crate) fn reserve(&self, n: c_int) -> bool {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_checkstack(self.l, n) != 0 }
    }

    pub(crate) fn top(&self) -> c_int {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_gettop(self.l) }
    }

    pub(crate) fn set_top(&self, n: c_int) {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_settop(self.l, n) }
    }

    pub(crate) fn pop(&self, n: c_int) {
        self.set_top(-n - 1);
    }

    pub(crate) fn kind(&self, at: c_int) -> Kind {
        // SAFETY: what stands above the `impl` holds for this call.
        match unsafe { ffi::lua_type(self.l, at) } {
            ffi::LUA_TNIL => Kind::Nil,
            ffi::LUA_TBOOLEAN => Kind::Boolean,
            ffi::LUA_TLIGHTUSERDATA => Kind::LightUserdata,
            ffi::LUA_TNUMBER => Kind::Number,
            ffi::LUA_TSTRING => Kind::String,
            ffi::LUA_TTABLE => Kind::Table,
            ffi::LUA_TFUNCTION => Kind::Function,
            ffi::LUA_TUSERDATA => Kind::Userdata,
            ffi::LUA_TTHREAD => Kind::Thread,
            ffi::LUA_TCDATA => Kind::Cdata,
            _ => Kind::None,
        }
    }

    pub(crate) fn is_nil(&self, at: c_int) -> bool {
        matches!(self.kind(at), Kind::Nil | Kind::None)
    }

    pub(crate) fn boolean(&self, at: c_int) -> bool {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_toboolean(self.l, at) != 0 }
    }

    /// A number, or a string that reads as one.
    pub(crate) fn number(&self, at: c_int) -> Option<f64> {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { (ffi::lua_isnumber(self.l, at) != 0).then(|| ffi::lua_tonumber(self.l, at)) }
    }

    /// The bytes of a string or number. A number becomes a string in its place.
    ///
    /// They live while the value stands on the stack: do not pop it meanwhile.
    pub(crate) fn bytes(&self, at: c_int) -> Option<&[u8]> {
        if !matches!(self.kind(at), Kind::String | Kind::Number) {
            return None;
        }
        let mut length = 0;
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe {
            let text = ffi::lua_tolstring(self.l, at, &mut length);
            (!text.is_null()).then(|| slice::from_raw_parts(text.cast(), length))
        }
    }

    /// A value as text: strings and numbers as they are, `nil` and booleans by their names.
    pub(crate) fn text(&self, at: c_int) -> Option<Vec<u8>> {
        Some(match self.kind(at) {
            Kind::Nil | Kind::None => b"nil".to_vec(),
            Kind::Boolean if self.boolean(at) => b"true".to_vec(),
            Kind::Boolean => b"false".to_vec(),
            Kind::LightUserdata if self.light(at).is_null() => b"null".to_vec(),
            _ => self.bytes(at)?.to_vec(),
        })
    }

    pub(crate) fn light(&self, at: c_int) -> *mut c_void {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_touserdata(self.l, at) }
    }

    pub(crate) fn length(&self, at: c_int) -> usize {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_objlen(self.l, at) }
    }

    pub(crate) fn is_same(&self, a: c_int, b: c_int) -> bool {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_rawequal(self.l, a, b) != 0 }
    }

    pub(crate) fn push_nil(&self) {
        self.reserve(1);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_pushnil(self.l) }
    }

    pub(crate) fn push_boolean(&self, value: bool) {
        self.reserve(1);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_pushboolean(self.l, c_int::from(value)) }
    }

    pub(crate) fn push_number(&self, value: f64) {
        self.reserve(1);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_pushnumber(self.l, value) }
    }

    pub(crate) fn push_bytes(&self, value: impl AsRef<[u8]>) {
        self.reserve(1);
        let value = value.as_ref();
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_pushlstring_(self.l, value.as_ptr().cast(), value.len()) }
    }

    pub(crate) fn push_light(&self, value: *mut c_void) {
        self.reserve(1);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_pushlightuserdata(self.l, value) }
    }

    /// Pushes the thread whose stack this is.
    pub(crate) fn push_itself(&self) {
        self.reserve(1);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_pushthread(self.l) };
    }

    /// What tells the thread of this stack from every other one that lives.
    pub(crate) fn identity(&self) -> usize {
        self.l.addr()
    }

    /// Pushes a copy of what stands at `at`.
    pub(crate) fn push_copy(&self, at: c_int) {
        self.reserve(1);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_pushvalue(self.l, at) }
    }

    /// Pushes a function of ours.
    pub(crate) fn push_native(&self, native: Native) {
        self.reserve(2);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe {
            ffi::lua_pushlightuserdata(self.l, native as *mut c_void);
            ffi::lua_pushcclosure(self.l, native::call, 1);
        }
    }

    pub(crate) fn insert(&self, at: c_int) {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_insert(self.l, at) }
    }

    pub(crate) fn remove(&self, at: c_int) {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_remove(self.l, at) }
    }

    pub(crate) fn push_table(&self, array: usize, fields: usize) {
        self.reserve(3);
        let bounded = |n: usize| c_int::try_from(n).unwrap_or(0);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_createtable(self.l, bounded(array), bounded(fields)) }
    }

    /// Sets field `name` of the table at `table` to the value on top, which is popped. No metamethods.
    pub(crate) fn set(&self, table: c_int, name: impl AsRef<[u8]>) {
        let table = self.absolute(table);
        self.push_bytes(name);
        self.insert(-2);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_rawset(self.l, table) }
    }

    /// Sets `t[key] = value` of what is on top, key below value; pops both. No metamethods. The key is neither nil nor
    /// NaN.
    pub(crate) fn set_pair(&self, table: c_int) {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_rawset(self.l, table) }
    }

    /// Sets element `n` of the table at `table` to the value on top, which is popped. No metamethods.
    pub(crate) fn set_element(&self, table: c_int, n: usize) {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_rawseti_(self.l, table, c_int::try_from(n).unwrap_or(c_int::MAX)) }
    }

    /// Pushes field `name` of the table at `table`. No metamethods.
    pub(crate) fn field(&self, table: c_int, name: impl AsRef<[u8]>) -> Kind {
        let table = self.absolute(table);
        self.push_bytes(name);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_rawget_(self.l, table) };
        self.kind(-1)
    }

    /// Pushes the field of the table at `table` that the value on top names, in its place. No metamethods.
    pub(crate) fn field_of_top(&self, table: c_int) -> Kind {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_rawget_(self.l, table) };
        self.kind(-1)
    }

    /// Pushes element `n` of the table at `table`. No metamethods.
    pub(crate) fn element(&self, table: c_int, n: usize) -> Kind {
        self.reserve(1);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_rawgeti_(self.l, table, c_int::try_from(n).unwrap_or(c_int::MAX)) };
        self.kind(-1)
    }

    /// Pops a key and pushes the next key and value of a table; `false`, and nothing pushed, at its end. Begin with
    /// nil. Neither key nor table may change meanwhile; a key that is a number must not be read as bytes.
    pub(crate) fn next(&self, table: c_int) -> bool {
        self.reserve(2);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_next(self.l, table) != 0 }
    }

    /// Gives the value at `at` the table on top as its metatable, which is popped.
    pub(crate) fn set_metatable(&self, at: c_int) {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_setmetatable(self.l, at) };
    }

    /// Pushes the metatable of a value, if it has one.
    pub(crate) fn push_metatable(&self, at: c_int) -> bool {
        self.reserve(1);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_getmetatable(self.l, at) != 0 }
    }

    /// Moves the `n` values on top to another thread of the same state.
    pub(crate) fn move_to(&self, other: &Stack, n: c_int) {
        other.reserve(n);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_xmove(self.l, other.l, n) }
    }

    /// A place counted from the bottom.
    pub(crate) fn absolute(&self, at: c_int) -> c_int {
        if at > 0 || at <= REGISTRY {
            at
        } else {
            self.top() + at + 1
        }
    }

    /// Compiles a chunk and pushes it as a function; the message when it is not Lua. `name` is shown in messages as it
    /// is. Precompiled code is refused: it could break out of the machine.
    pub(crate) fn load(&self, code: &[u8], name: &str) -> Result<(), Vec<u8>> {
        self.reserve(1);
        // Lua shortens the name of a file where it must, and shows any other as it is.
        let mark = if name.starts_with('/') { '@' } else { '=' };
        let name = CString::new(format!("{mark}{name}")).unwrap_or_default();
        // SAFETY: what stands above the `impl` holds for this call.
        let status = unsafe {
            ffi::luaL_loadbufferx(
                self.l,
                code.as_ptr().cast(),
                code.len(),
                name.as_ptr(),
                c"t".as_ptr(),
            )
        };
        if status == 0 {
            return Ok(());
        }
        let message = self.bytes(-1).map(<[u8]>::to_vec).unwrap_or_default();
        self.pop(1);
        Err(message)
    }

    /// Calls the function below `arguments` values on top, with errors caught: what it pushed stands in their place, or
    /// the message is given back. For code of ours that can not yield; no bounds hold.
    pub(crate) fn call(&self, arguments: c_int, results: c_int) -> Result<(), Vec<u8>> {
        self.reserve(results.max(1));
        // SAFETY: as above; while Lua's code runs the bound holds for it again, and errors are caught.
        let status = unsafe {
            let memory = Memory::of(self.l);
            let before = memory.set_strict(true);
            let status = ffi::lua_pcall(self.l, arguments, results, 0);
            memory.set_strict(before);
            status
        };
        if status == 0 {
            return Ok(());
        }
        let message = self.error_text(-1);
        self.pop(1);
        Err(message)
    }

    /// Where the function at `level` is at work, as `file:line: `.
    pub(crate) fn place(&self, level: c_int) -> Vec<u8> {
        self.reserve(2);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::luaL_where(self.l, level) };
        let text = self.bytes(-1).map(<[u8]>::to_vec).unwrap_or_default();
        self.pop(1);
        text
    }

    /// What a value's `__tostring` says; `None` when it has none, or when that fails.
    pub(crate) fn to_text(self, at: c_int) -> Option<Vec<u8>> {
        let at = self.absolute(at);
        if !self.push_metatable(at) {
            return None;
        }
        let kind = self.field(-1, "__tostring");
        self.remove(-2);
        if kind != Kind::Function {
            self.pop(1);
            return None;
        }
        self.push_copy(at);
        self.call(1, 1).ok()?;
        let text = self.bytes(-1).map(<[u8]>::to_vec);
        self.pop(1);
        text
    }

    /// A value as Lua's `tostring` has it.
    pub(crate) fn shown(&self, at: c_int) -> Vec<u8> {
        let kind = self.kind(at);
        if kind != Kind::LightUserdata
            && let Some(text) = self.text(at)
        {
            return text;
        }
        if let Some(text) = self.to_text(at) {
            return text;
        }
        // SAFETY: what stands above the `impl` holds for this call.
        let place = unsafe { ffi::lua_topointer(self.l, at) };
        match place.is_null() {
            true => format!("{}: NULL", kind.name()).into_bytes(),
            false => format!("{}: {place:p}", kind.name()).into_bytes(),
        }
    }

    /// What the script calls the function of ours that runs, and whether it is called as a method; `None` where it was
    /// called by no name.
    pub(crate) fn called_as(&self) -> Option<(Vec<u8>, bool)> {
        // SAFETY: what stands above the `impl` holds for these calls. The record is filled by the first call when it says
        // so; the names are texts of the running function, which end with a zero.
        unsafe {
            let mut record: ffi::lua_Debug = std::mem::zeroed();
            if ffi::lua_getstack(self.l, 0, &raw mut record) == 0 {
                return None;
            }
            ffi::lua_getinfo(self.l, c"n".as_ptr(), &raw mut record);
            if record.name.is_null() {
                return None;
            }
            let name = CStr::from_ptr(record.name).to_bytes().to_vec();
            let what = CStr::from_ptr(record.namewhat).to_bytes();
            Some((name, what == b"method"))
        }
    }

    /// The text of an error value.
    pub(crate) fn error_text(&self, at: c_int) -> Vec<u8> {
        match self.bytes(at) {
            Some(text) => text.to_vec(),
            None => format!("unknown reason (a {} value)", self.kind(at).name()).into_bytes(),
        }
    }

    /// Where the function at `level` is at work, as `file:line:`, with `message` before it all.
    pub(crate) fn traceback(&self, message: &[u8]) -> Vec<u8> {
        let message = CString::new(message.replace_zeros()).unwrap_or_default();
        if !self.reserve(20) {
            return message.into_bytes();
        }
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::luaL_traceback(self.l, self.l, message.as_ptr(), 0) };
        let text = self.bytes(-1).map(<[u8]>::to_vec).unwrap_or_default();
        self.pop(1);
        text
    }
}

/// Text for C, which ends at a zero.
trait ReplaceZeros {
    fn replace_zeros(&self) -> Vec<u8>;
}

impl ReplaceZeros for [u8] {
    fn replace_zeros(&self) -> Vec<u8> {
        self.iter()
            .map(|byte| if *byte == 0 { b'?' } else { *byte })
            .collect()
    }
}

//! The stack of a Lua thread, through calls that cannot raise an error.
//!
//! Positions are counted as in Lua's manual: from 1 at the bottom, from -1 at the top.
//!
//! All access to tables is raw, without metamethods: a metamethod is Lua code, which may raise an
//! error or never return.

use std::ffi::{CStr, CString, c_int, c_void};
use std::slice;

use super::ffi;
use super::memory::LuaHeap;
use super::native::{self, NativeFunction};

/// The stack of a Lua thread. Its holder must keep the state alive.
#[derive(Clone, Copy)]
pub(crate) struct LuaStack {
    pub(super) l: *mut ffi::lua_State,
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LuaType {
    /// There is no such position.
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

impl LuaType {
    /// Its name in Lua.
    pub(crate) fn name(self) -> &'static str {
        match self {
            LuaType::None => "no value",
            LuaType::Nil => "nil",
            LuaType::Boolean => "boolean",
            LuaType::LightUserdata | LuaType::Userdata => "userdata",
            LuaType::Number => "number",
            LuaType::String => "string",
            LuaType::Table => "table",
            LuaType::Function => "function",
            LuaType::Thread => "thread",
            LuaType::Cdata => "cdata",
        }
    }
}

/// The registry, as a position.
pub(crate) const REGISTRY: c_int = ffi::LUA_REGISTRYINDEX;

/// The table of globals, as a position.
pub(crate) const GLOBALS: c_int = ffi::LUA_GLOBALSINDEX;

// SAFETY, for every block below: `self.l` is a living state of this thread (the promise of
// `LuaStack::new`), each call is one that cannot raise while memory is unlimited, which it is while
// our code runs (see the module's page), and room was reserved where values are pushed.
// JUSTIFICATION: this is the seam; without it there is no Lua.
impl LuaStack {
    /// # Safety
    /// `l` is a state or thread of this thread that lives for as long as the result is used.
    pub(crate) unsafe fn new(l: *mut ffi::lua_State) -> LuaStack {
        LuaStack { l }
    }

    /// Makes room for `n` more values; `false` if the stack has reached its maximum.
    pub(crate) fn reserve(&self, n: c_int) -> bool {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_checkstack(self.l, n) != 0 }
    }

    /// The position of the top value: how many values there are.
    pub(crate) fn top(&self) -> c_int {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_gettop(self.l) }
    }

    /// Drops values, or pushes nils, until there are `n`.
    pub(crate) fn set_top(&self, n: c_int) {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_settop(self.l, n) }
    }

    /// Drops the top `n` values.
    pub(crate) fn pop(&self, n: c_int) {
        self.set_top(-n - 1);
    }

    /// The type of the value at a position.
    pub(crate) fn type_at(&self, at: c_int) -> LuaType {
        // SAFETY: what stands above the `impl` holds for this call.
        match unsafe { ffi::lua_type(self.l, at) } {
            ffi::LUA_TNIL => LuaType::Nil,
            ffi::LUA_TBOOLEAN => LuaType::Boolean,
            ffi::LUA_TLIGHTUSERDATA => LuaType::LightUserdata,
            ffi::LUA_TNUMBER => LuaType::Number,
            ffi::LUA_TSTRING => LuaType::String,
            ffi::LUA_TTABLE => LuaType::Table,
            ffi::LUA_TFUNCTION => LuaType::Function,
            ffi::LUA_TUSERDATA => LuaType::Userdata,
            ffi::LUA_TTHREAD => LuaType::Thread,
            ffi::LUA_TCDATA => LuaType::Cdata,
            _ => LuaType::None,
        }
    }

    pub(crate) fn is_nil(&self, at: c_int) -> bool {
        matches!(self.type_at(at), LuaType::Nil | LuaType::None)
    }

    /// Whether a value is true: everything but nil and false is.
    pub(crate) fn boolean(&self, at: c_int) -> bool {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_toboolean(self.l, at) != 0 }
    }

    /// A number, or a string that reads as one.
    pub(crate) fn number(&self, at: c_int) -> Option<f64> {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { (ffi::lua_isnumber(self.l, at) != 0).then(|| ffi::lua_tonumber(self.l, at)) }
    }

    /// They are valid while the value is on the stack: do not pop it meanwhile.
    pub(crate) fn bytes(&self, at: c_int) -> Option<&[u8]> {
        if !matches!(self.type_at(at), LuaType::String | LuaType::Number) {
            return None;
        }
        let mut length = 0;
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe {
            let text = ffi::lua_tolstring(self.l, at, &mut length);
            (!text.is_null()).then(|| slice::from_raw_parts(text.cast(), length))
        }
    }

    /// A value as text: strings and numbers as they are, `nil` and booleans by name; `None` for
    /// others.
    pub(crate) fn text(&self, at: c_int) -> Option<Vec<u8>> {
        Some(match self.type_at(at) {
            LuaType::Nil | LuaType::None => b"nil".to_vec(),
            LuaType::Boolean if self.boolean(at) => b"true".to_vec(),
            LuaType::Boolean => b"false".to_vec(),
            LuaType::LightUserdata if self.light(at).is_null() => b"null".to_vec(),
            _ => self.bytes(at)?.to_vec(),
        })
    }

    /// The address in a userdata of either kind.
    pub(crate) fn light(&self, at: c_int) -> *mut c_void {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_touserdata(self.l, at) }
    }

    /// The length of a string or table, without `__len`.
    pub(crate) fn length(&self, at: c_int) -> usize {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_objlen(self.l, at) }
    }

    /// Whether two values are equal, without `__eq`.
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

    /// A number that no other living thread of Lua has.
    pub(crate) fn identity(&self) -> usize {
        self.l.addr()
    }

    /// Pushes a copy of the value at `at`.
    pub(crate) fn push_copy(&self, at: c_int) {
        self.reserve(1);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_pushvalue(self.l, at) }
    }

    /// Pushes a Rust function.
    pub(crate) fn push_native(&self, native: NativeFunction) {
        self.reserve(2);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe {
            ffi::lua_pushlightuserdata(self.l, native as *mut c_void);
            ffi::lua_pushcclosure(self.l, native::call, 1);
        }
    }

    /// Moves the top value below the position `at`.
    pub(crate) fn insert(&self, at: c_int) {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_insert(self.l, at) }
    }

    /// Removes the value at a position.
    pub(crate) fn remove(&self, at: c_int) {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_remove(self.l, at) }
    }

    /// Pushes a new table with room for elements and for named fields.
    pub(crate) fn push_table(&self, array: usize, fields: usize) {
        self.reserve(3);
        let bounded = |n: usize| c_int::try_from(n).unwrap_or(0);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_createtable(self.l, bounded(array), bounded(fields)) }
    }

    /// Sets field `name` of the table at `table` to the value on top, which is popped.
    pub(crate) fn set(&self, table: c_int, name: impl AsRef<[u8]>) {
        let table = self.absolute(table);
        self.push_bytes(name);
        self.insert(-2);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_rawset(self.l, table) }
    }

    /// Sets `t[key] = value` for the two values on top, the key below the value, and pops both. The
    /// key is neither nil nor NaN, which would raise an error.
    pub(crate) fn set_pair(&self, table: c_int) {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_rawset(self.l, table) }
    }

    /// Sets element `n` of the table at `table` to the value on top, which is popped.
    pub(crate) fn set_element(&self, table: c_int, n: usize) {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_rawseti_(self.l, table, c_int::try_from(n).unwrap_or(c_int::MAX)) }
    }

    /// Pushes field `name` of the table at `table`.
    pub(crate) fn field(&self, table: c_int, name: impl AsRef<[u8]>) -> LuaType {
        let table = self.absolute(table);
        self.push_bytes(name);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_rawget_(self.l, table) };
        self.type_at(-1)
    }

    /// Replaces the key on top by the field of that name of the table at `table`.
    pub(crate) fn field_of_top(&self, table: c_int) -> LuaType {
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_rawget_(self.l, table) };
        self.type_at(-1)
    }

    /// Pushes element `n` of the table at `table`.
    pub(crate) fn element(&self, table: c_int, n: usize) -> LuaType {
        self.reserve(1);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_rawgeti_(self.l, table, c_int::try_from(n).unwrap_or(c_int::MAX)) };
        self.type_at(-1)
    }

    /// Pops a key and pushes the next key and value of a table; `false`, and nothing pushed, at its
    /// end. Start with nil. The table must not change meanwhile, and a key that is a number must
    /// not be read as bytes, which would turn it into a string and confuse the iteration.
    pub(crate) fn next(&self, table: c_int) -> bool {
        self.reserve(2);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_next(self.l, table) != 0 }
    }

    /// Makes the table on top the metatable of the value at `at`, and pops it.
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

    /// Moves the top `n` values to another thread of the same state.
    pub(crate) fn move_to(&self, other: &LuaStack, n: c_int) {
        other.reserve(n);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::lua_xmove(self.l, other.l, n) }
    }

    /// A position counted from the bottom: valid after more values are pushed.
    pub(crate) fn absolute(&self, at: c_int) -> c_int {
        if at > 0 || at <= REGISTRY {
            at
        } else {
            self.top() + at + 1
        }
    }

    /// Compiles a chunk and pushes it as a function; the error is Lua's message. Bytecode is
    /// refused: LuaJIT does not verify it, so it could do anything to the process.
    pub(crate) fn load(&self, code: &[u8], name: &str) -> Result<(), Vec<u8>> {
        self.reserve(1);
        // With `@` Lua takes the name for a file's and shortens it if it must; with `=` it shows it
        // as it is.
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

    /// Calls the function below the `arguments` values on top. Its results replace them, or the
    /// error's message is returned. For code that cannot yield, such as our own prelude; no time
    /// limit applies.
    pub(crate) fn call(&self, arguments: c_int, results: c_int) -> Result<(), Vec<u8>> {
        self.reserve(results.max(1));
        // SAFETY: as above; the limit is enforced again while Lua code runs, and errors are caught.
        let status = unsafe {
            let memory = LuaHeap::of(self.l);
            let before = memory.set_enforced(true);
            let status = ffi::lua_pcall(self.l, arguments, results, 0);
            memory.set_enforced(before);
            status
        };
        if status == 0 {
            return Ok(());
        }
        let message = self.error_text(-1);
        self.pop(1);
        Err(message)
    }

    /// Where the function at `level` is executing, as `file:line: `.
    pub(crate) fn position(&self, level: c_int) -> Vec<u8> {
        self.reserve(2);
        // SAFETY: what stands above the `impl` holds for this call.
        unsafe { ffi::luaL_where(self.l, level) };
        let text = self.bytes(-1).map(<[u8]>::to_vec).unwrap_or_default();
        self.pop(1);
        text
    }

    /// The result of a value's `__tostring`; `None` if it has none, or if that fails.
    pub(crate) fn to_text(self, at: c_int) -> Option<Vec<u8>> {
        let at = self.absolute(at);
        if !self.push_metatable(at) {
            return None;
        }
        let kind = self.field(-1, "__tostring");
        self.remove(-2);
        if kind != LuaType::Function {
            self.pop(1);
            return None;
        }
        self.push_copy(at);
        self.call(1, 1).ok()?;
        let text = self.bytes(-1).map(<[u8]>::to_vec);
        self.pop(1);
        text
    }

    /// A value as Lua's `tostring` shows it.
    pub(crate) fn tostring(&self, at: c_int) -> Vec<u8> {
        let kind = self.type_at(at);
        if kind != LuaType::LightUserdata
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

    /// How the script calls the running Rust function: by what name, and whether as a method.
    /// `None` if it has no name there.
    pub(crate) fn called_as(&self) -> Option<(Vec<u8>, bool)> {
        // SAFETY: what stands above the `impl` holds for these calls. The record is filled by the
        // first call when it says so; the names are texts of the running function, which end with a
        // zero.
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
            None => format!("unknown reason (a {} value)", self.type_at(at).name()).into_bytes(),
        }
    }

    /// A traceback of this thread, with `message` in front.
    pub(crate) fn traceback(&self, message: &[u8]) -> Vec<u8> {
        let message = CString::new(message.replace_zeros()).unwrap_or_default();
        // After a stack overflow there is no room for a traceback.
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

/// Replaces zero bytes in text for C, which would end there.
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

//! `ngx.shared.DICT`: the dictionaries, as scripts use them.
//!
//! Results and errors follow lua-resty-core: a wrong key is returned as an error, a wrong type is
//! raised. Keys and values are copied in and out, so the lock is never held while Lua runs.

use std::rc::Rc;
use std::sync::Arc;

use super::arguments::{as_int, bytes, number, text};
use super::called::answer;
use super::encode::most;
use super::{CallResult, NativeTable};
use crate::luajit::object::{self, ObjectClass, ObjectShape};
use crate::luajit::stack::LuaType;
use crate::luajit::{LuaError, LuaStack, LuaValue, NativeReturn, fail};
use crate::shared_dict::{DictValue, ListEnd, NewEntry, PushError, SharedDict};

static DICTIONARY: ObjectClass = ObjectClass {
    name: "weir.shared",
    shape: ObjectShape::Table,
    methods: METHODS,
};

const METHODS: NativeTable = &[
    ("get", get),
    ("get_stale", get_stale),
    ("set", set),
    ("safe_set", safe_set),
    ("add", add),
    ("safe_add", safe_add),
    ("replace", replace),
    ("delete", delete),
    ("incr", incr),
    ("lpush", lpush),
    ("rpush", rpush),
    ("lpop", lpop),
    ("rpop", rpop),
    ("llen", llen),
    ("ttl", ttl),
    ("expire", expire),
    ("flush_all", flush_all),
    ("flush_expired", flush_expired),
    ("get_keys", get_keys),
    ("capacity", capacity),
    ("free_space", free_space),
];

/// Pushes the table `ngx.shared`.
pub(super) fn push(stack: &LuaStack, dictionaries: &[Arc<SharedDict>]) {
    stack.push_table(0, dictionaries.len());
    for dictionary in dictionaries {
        object::push(stack, &DICTIONARY, Rc::new(Arc::clone(dictionary)));
        stack.set(-2, &dictionary.name);
    }
}

/// What the userdata holds. The outer `Rc` is what all objects have.
type DictHandle = Rc<Arc<SharedDict>>;

/// The dictionary in the first argument.
fn dictionary(stack: &LuaStack) -> Result<DictHandle, LuaError> {
    object::get(stack, 1, "shared dictionary").map_err(|_| LuaError::from("bad \"zone\" argument"))
}

/// The longest key, in bytes, as in lua-nginx-module.
const MAX_KEY: usize = 65535;

/// The key in argument 2, of any type; the inner error is returned to the script.
fn key(stack: &LuaStack) -> Result<Result<Vec<u8>, &'static str>, LuaError> {
    if stack.is_nil(2) {
        return Ok(Err("nil key"));
    }
    Ok(checked(stack.tostring(2)))
}

/// The key of a list function: text or number, and the number of arguments must be right.
fn strict_key(stack: &LuaStack, wanted: i32) -> Result<Result<Vec<u8>, &'static str>, LuaError> {
    let given = stack.top();
    if given != wanted {
        return fail(format!(
            "expecting {wanted} arguments, but only seen {given}"
        ));
    }
    if stack.is_nil(2) {
        return Ok(Err("nil key"));
    }
    Ok(checked(text(stack, 2)?))
}

/// Checks the length of a key.
fn checked(key: Vec<u8>) -> Result<Vec<u8>, &'static str> {
    match key.len() {
        0 => Err("empty key"),
        n if n > MAX_KEY => Err("key too long"),
        _ => Ok(key),
    }
}

/// The lifetime in argument `at`, in seconds; 0: for ever.
fn lifetime(stack: &LuaStack, at: i32) -> Result<f64, LuaError> {
    match stack.type_at(at) {
        LuaType::Number => match number(stack, at)? {
            time if time < 0.0 => fail("bad \"exptime\" argument"),
            time => Ok(time),
        },
        LuaType::Cdata => Ok(0.0),
        _ if !stack.boolean(at) => Ok(0.0),
        kind => fail(format!("attempt to compare {} with number", kind.name())),
    }
}

/// A number, or text that reads as one, in argument `at`.
fn as_number(stack: &LuaStack, at: i32, what: &str) -> Result<Option<f64>, LuaError> {
    match (stack.type_at(at), stack.number(at)) {
        (_, Some(number)) => Ok(Some(number)),
        (LuaType::Nil | LuaType::None, None) => Ok(None),
        (kind, None) => fail(format!(
            "bad {what} arg: number expected, got {}",
            kind.name()
        )),
    }
}

/// The wall clock in milliseconds: an expiry time must mean the same on all loops.
fn now() -> u64 {
    rt::wall_millis()
}

/// Pushes a stored value.
fn push_item(stack: &LuaStack, item: &DictValue) {
    match item {
        DictValue::Boolean(value) => stack.push_boolean(*value),
        DictValue::Number(value) => stack.push_number(*value),
        DictValue::Bytes(value) => stack.push_bytes(value),
        // Does not occur: `get` reports a list as an error, and the items of a list are no lists.
        DictValue::List(_) => stack.push_nil(),
    }
}

/// `dict:get(key)`: value and flags.
fn get(stack: &LuaStack) -> CallResult {
    read_value(stack, false)
}

/// `dict:get_stale(key)`: value, flags and whether it has expired. What has expired is there until
/// something is written.
fn get_stale(stack: &LuaStack) -> CallResult {
    read_value(stack, true)
}

/// `get` and `get_stale`.
fn read_value(stack: &LuaStack, stale: bool) -> CallResult {
    let dictionary = dictionary(stack)?;
    let key = match key(stack)? {
        Ok(key) => key,
        Err(message) => return answer(stack, LuaValue::failure(message)),
    };
    let now = now();
    let mut entries = dictionary.lock();
    // `get_stale` must not remove what it is asked for.
    if !stale {
        entries.expire_oldest(now);
    }
    let entry = entries
        .get(&key, now)
        .filter(|entry| stale || !entry.is_expired(now));
    let Some(entry) = entry else {
        stack.push_nil();
        return super::ONE;
    };
    // A list has functions of its own, and no single value.
    if matches!(entry.value, DictValue::List(_)) {
        return answer(stack, LuaValue::failure("value is a list"));
    }
    push_item(stack, &entry.value);
    match entry.flags {
        0 if !stale => return super::ONE,
        0 => stack.push_nil(),
        flags => stack.push_number(f64::from(flags)),
    }
    if stale {
        stack.push_boolean(entry.is_expired(now));
    }
    Ok(NativeReturn::Values(if stale { 3 } else { 2 }))
}

/// What a write requires of the key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteMode {
    Set,
    /// It must not be there.
    Add,
    /// It must be there.
    Replace,
}

/// `dict:set(key, value, exptime, flags)`: value, error, forcible.
fn set(stack: &LuaStack) -> CallResult {
    write_value(stack, WriteMode::Set, true)
}

/// `dict:safe_set`: fails with "no memory" instead of evicting valid entries.
fn safe_set(stack: &LuaStack) -> CallResult {
    write_value(stack, WriteMode::Set, false)
}

/// `dict:add`: only if the key is not there, or has expired.
fn add(stack: &LuaStack) -> CallResult {
    write_value(stack, WriteMode::Add, true)
}

/// `dict:safe_add`.
fn safe_add(stack: &LuaStack) -> CallResult {
    write_value(stack, WriteMode::Add, false)
}

/// `dict:replace`: only if the key is there.
fn replace(stack: &LuaStack) -> CallResult {
    write_value(stack, WriteMode::Replace, true)
}

/// `dict:delete(key)`: the same as setting nil.
fn delete(stack: &LuaStack) -> CallResult {
    stack.set_top(2);
    write_value(stack, WriteMode::Set, true)
}

/// The time of expiry of a lifetime in seconds; 0 is never.
fn expiry(seconds: f64, now: u64) -> u64 {
    if seconds <= 0.0 {
        0
    } else {
        now.saturating_add((seconds * 1000.0) as u64)
    }
}

/// The three results of a write: success, message, whether valid entries were evicted.
fn write_result(stack: &LuaStack, ok: bool, message: Option<&str>, forced: bool) -> CallResult {
    stack.push_boolean(ok);
    match message {
        Some(message) => stack.push_bytes(message),
        None => stack.push_nil(),
    }
    stack.push_boolean(forced);
    Ok(NativeReturn::Values(3))
}

/// All functions that write a value.
fn write_value(stack: &LuaStack, mode: WriteMode, may_force: bool) -> CallResult {
    let dictionary = dictionary(stack)?;
    let time = lifetime(stack, 4)?;
    let key = match key(stack)? {
        Ok(key) => key,
        Err(message) => return answer(stack, LuaValue::failure(message)),
    };
    let value = match stack.type_at(3) {
        LuaType::Nil | LuaType::None => None,
        LuaType::Boolean => Some(DictValue::Boolean(stack.boolean(3))),
        LuaType::Number => stack.number(3).map(DictValue::Number),
        LuaType::String => Some(DictValue::Bytes(bytes(stack, 3)?.into())),
        _ => return answer(stack, LuaValue::failure("bad value type")),
    };
    let flags = match stack.type_at(5) {
        LuaType::Number => as_int(number(stack, 5)?) as u32,
        LuaType::Boolean => u32::from(stack.boolean(5)),
        LuaType::Nil | LuaType::None | LuaType::Cdata => 0,
        _ => return fail("bad \"flags\" argument"),
    };
    if value.is_none() && mode != WriteMode::Set {
        return write_result(
            stack,
            false,
            Some("attempt to add or replace nil values"),
            false,
        );
    }
    let now = now();
    // Read, changed and written under one lock: that makes it atomic.
    let mut entries = dictionary.lock();
    entries.expire_oldest(now);
    let known = entries
        .get(&key, now)
        .is_some_and(|entry| !entry.is_expired(now));
    match mode {
        WriteMode::Add if known => return write_result(stack, false, Some("exists"), false),
        WriteMode::Replace if !known => {
            return write_result(stack, false, Some("not found"), false);
        }
        _ => {}
    }
    // Setting nil deletes.
    let Some(value) = value else {
        entries.remove(&key);
        drop(entries);
        dictionary.changes.tell();
        // Also if there was nothing to delete: the key is not there afterwards.
        return write_result(stack, true, None, false);
    };
    let new = NewEntry {
        value,
        flags,
        expires: expiry(time, now),
    };
    let put = entries.put(&key, new, now, may_force);
    drop(entries);
    if put.stored {
        dictionary.changes.tell();
    }
    let message = (!put.stored).then_some("no memory");
    write_result(stack, put.stored, message, put.forcible)
}

/// `dict:incr(key, value, init, init_ttl)`: the new value, and with `init` error and forcible. It
/// is atomic across loops, which `get` and `set` are not.
fn incr(stack: &LuaStack) -> CallResult {
    let dictionary = dictionary(stack)?;
    let key = match key(stack)? {
        Ok(key) => key,
        Err(message) => return answer(stack, LuaValue::failure(message)),
    };
    let Some(by) = stack.number(3) else {
        return fail("cannot convert 'nil' to 'double'");
    };
    // `false` is the same as no initial value.
    let init = match stack.type_at(4) {
        LuaType::Boolean if !stack.boolean(4) => None,
        _ => as_number(stack, 4, "init")?,
    };
    let init_time = as_number(stack, 5, "init_ttl")?;
    if init_time.is_some_and(|time| time < 0.0) {
        return fail("bad \"init_ttl\" argument");
    }
    if init.is_none() && init_time.is_some() {
        return fail("must provide \"init\" when providing \"init_ttl\"");
    }
    let init_time = init_time.unwrap_or(0.0);
    let now = now();
    let mut entries = dictionary.lock();
    entries.expire_oldest(now);
    let known = entries.get(&key, now);
    if let Some(entry) = known.filter(|entry| !entry.is_expired(now)) {
        // The type is part of the entry: a string of digits is no number here, as in
        // lua-nginx-module.
        let DictValue::Number(value) = &mut entry.value else {
            return answer(stack, LuaValue::failure("not a number"));
        };
        *value += by;
        stack.push_number(*value);
        if init.is_none() {
            return super::ONE;
        }
        stack.push_nil();
        stack.push_boolean(false);
        return Ok(NativeReturn::Values(3));
    }
    let Some(init) = init else {
        return answer(stack, LuaValue::failure("not found"));
    };
    let new = NewEntry {
        value: DictValue::Number(init + by),
        flags: 0,
        expires: expiry(init_time, now),
    };
    let put = entries.put(&key, new, now, true);
    if !put.stored {
        return answer(stack, LuaValue::failure("no memory"));
    }
    stack.push_number(init + by);
    stack.push_nil();
    stack.push_boolean(put.forcible);
    Ok(NativeReturn::Values(3))
}

/// `dict:lpush(key, value)`: the new length.
fn lpush(stack: &LuaStack) -> CallResult {
    push_to_list(stack, ListEnd::Front)
}

/// `dict:rpush(key, value)`.
fn rpush(stack: &LuaStack) -> CallResult {
    push_to_list(stack, ListEnd::Back)
}

/// Adds to one end of a list and returns its length. A missing key becomes a new list.
fn push_to_list(stack: &LuaStack, end: ListEnd) -> CallResult {
    let dictionary = dictionary(stack)?;
    let key = match strict_key(stack, 3)? {
        Ok(key) => key,
        Err(message) => return answer(stack, LuaValue::failure(message)),
    };
    let item = match stack.type_at(3) {
        LuaType::Number => DictValue::Number(number(stack, 3)?),
        LuaType::String => DictValue::Bytes(bytes(stack, 3)?.into()),
        _ => return answer(stack, LuaValue::failure("bad value type")),
    };
    let (value, message) = match dictionary.lock().push(&key, item, end, now()) {
        Ok(length) => {
            stack.push_number(length as f64);
            return super::ONE;
        }
        Err(PushError::NotAList) => (LuaValue::Nil, "value not a list"),
        Err(PushError::NoRoomForItem) => (LuaValue::Nil, "no memory"),
        Err(PushError::NoRoomForList) => (LuaValue::Boolean(false), "no memory"),
    };
    answer(stack, vec![value, LuaValue::Bytes(message.into())])
}

/// `dict:lpop(key)`: the value, or nil.
fn lpop(stack: &LuaStack) -> CallResult {
    pop_from_list(stack, ListEnd::Front)
}

/// `dict:rpop(key)`.
fn rpop(stack: &LuaStack) -> CallResult {
    pop_from_list(stack, ListEnd::Back)
}

/// Removes the value at one end of a list and returns it; nil if there is none.
fn pop_from_list(stack: &LuaStack, end: ListEnd) -> CallResult {
    let dictionary = dictionary(stack)?;
    let key = match strict_key(stack, 2)? {
        Ok(key) => key,
        Err(message) => return answer(stack, LuaValue::failure(message)),
    };
    let item = dictionary.lock().pop(&key, end, now());
    match item {
        Ok(Some(item)) => push_item(stack, &item),
        Ok(None) => stack.push_nil(),
        Err(message) => return answer(stack, LuaValue::failure(message)),
    }
    super::ONE
}

/// `dict:llen(key)`.
fn llen(stack: &LuaStack) -> CallResult {
    let dictionary = dictionary(stack)?;
    let key = match strict_key(stack, 2)? {
        Ok(key) => key,
        Err(message) => return answer(stack, LuaValue::failure(message)),
    };
    let now = now();
    let mut entries = dictionary.lock();
    entries.expire_oldest(now);
    match entries.list(&key, now) {
        Ok(list) => stack.push_number(list.map_or(0, |list| list.len()) as f64),
        Err(message) => return answer(stack, LuaValue::failure(message)),
    }
    super::ONE
}

/// `dict:ttl(key)`: the remaining lifetime in seconds, 0 for ever.
fn ttl(stack: &LuaStack) -> CallResult {
    let dictionary = dictionary(stack)?;
    let key = match key(stack)? {
        Ok(key) => key,
        Err(message) => return answer(stack, LuaValue::failure(message)),
    };
    // Not `get`: to ask for the lifetime is no use of the entry.
    let expires = dictionary.lock().peek(&key).map(|entry| entry.expires);
    match expires {
        None => return answer(stack, LuaValue::failure("not found")),
        Some(0) => stack.push_number(0.0),
        // Negative once it has expired.
        Some(at) => stack.push_number((at as f64 - now() as f64) / 1000.0),
    }
    super::ONE
}

/// `dict:expire(key, exptime)`.
fn expire(stack: &LuaStack) -> CallResult {
    let dictionary = dictionary(stack)?;
    if !stack.boolean(3) {
        return fail("bad \"exptime\" argument");
    }
    let key = match key(stack)? {
        Ok(key) => key,
        Err(message) => return answer(stack, LuaValue::failure(message)),
    };
    let Some(time) = stack.number(3) else {
        let kind = stack.type_at(3).name();
        return fail(format!(
            "attempt to perform arithmetic on local 'exptime' (a {kind} value)"
        ));
    };
    let mut entries = dictionary.lock();
    match entries.peek(&key) {
        // This revives an expired entry, as in lua-nginx-module.
        Some(entry) => entry.expires = expiry(time, now()),
        None => return answer(stack, LuaValue::failure("not found")),
    }
    stack.push_boolean(true);
    super::ONE
}

/// `dict:flush_all()`.
fn flush_all(stack: &LuaStack) -> CallResult {
    // Marked as expired and not removed, as documented: `get_stale` still finds them, and their
    // memory is taken when it is needed.
    dictionary(stack)?.lock().expire_all(now());
    super::NONE
}

/// `dict:flush_expired(max)`: how many were removed.
fn flush_expired(stack: &LuaStack) -> CallResult {
    let given = stack.top();
    if !(1..=2).contains(&given) {
        return fail(format!("expecting 1 or 2 argument(s), but saw {given}"));
    }
    let dictionary = dictionary(stack)?;
    let max = match stack.top() {
        1 => usize::MAX,
        _ => most(as_int(number(stack, 2)?)),
    };
    let removed = dictionary.lock().remove_expired(max, now());
    stack.push_number(removed as f64);
    super::ONE
}

/// `dict:get_keys(max)`: 1024 by default. It holds the lock over all entries.
fn get_keys(stack: &LuaStack) -> CallResult {
    let given = stack.top();
    if !(1..=2).contains(&given) {
        return fail(format!("expecting 1 or 2 argument(s), but saw {given}"));
    }
    let dictionary = dictionary(stack)?;
    let max = match stack.top() {
        1 => 1024,
        _ => most(as_int(number(stack, 2)?)),
    };
    let keys = dictionary.lock().keys(max, now());
    stack.push_table(keys.len(), 0);
    for (n, key) in keys.iter().enumerate() {
        stack.push_bytes(key);
        stack.set_element(-2, n + 1);
    }
    super::ONE
}

/// `dict:capacity()`, in bytes.
fn capacity(stack: &LuaStack) -> CallResult {
    let size = dictionary(stack)?.size;
    stack.push_number(size as f64);
    super::ONE
}

/// `dict:free_space()`: bytes in free pages.
fn free_space(stack: &LuaStack) -> CallResult {
    let free = dictionary(stack)?.lock().free_bytes();
    stack.push_number(free as f64);
    super::ONE
}

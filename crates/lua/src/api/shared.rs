//! `ngx.shared`: the dictionaries, as scripts use them.

use std::rc::Rc;
use std::sync::Arc;

use super::arguments::{as_int, bytes, number, text};
use super::encode::most;
use super::output::answer;
use super::{Called, Functions};
use crate::dictionary::{Dictionary, End, Item, New, Refused};
use crate::luajit::object::{self, Class, Shape};
use crate::luajit::stack::Kind;
use crate::luajit::{Answer, Failure, Stack, Value, fail};

static DICTIONARY: Class = Class {
    name: "weir.shared",
    shape: Shape::Table,
    methods: METHODS,
};

const METHODS: Functions = &[
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

/// Pushes the table of dictionaries.
pub(super) fn push(stack: &Stack, dictionaries: &[Arc<Dictionary>]) {
    stack.push_table(0, dictionaries.len());
    for dictionary in dictionaries {
        object::push(stack, &DICTIONARY, Rc::new(Arc::clone(dictionary)));
        stack.set(-2, &dictionary.name);
    }
}

type Shared = Rc<Arc<Dictionary>>;

fn dictionary(stack: &Stack) -> Result<Shared, Failure> {
    object::get(stack, 1, "shared dictionary").map_err(|_| Failure::from("bad \"zone\" argument"))
}

/// How long a key may be, in bytes; nginx's.
const MAX_KEY: usize = 65535;

/// The key; a message for one that can not be.
fn key(stack: &Stack) -> Result<Result<Vec<u8>, &'static str>, Failure> {
    if stack.is_nil(2) {
        return Ok(Err("nil key"));
    }
    Ok(checked(stack.shown(2)))
}

/// The key of a function that takes texts and numbers only, and how many arguments it has.
fn strict_key(stack: &Stack, wanted: i32) -> Result<Result<Vec<u8>, &'static str>, Failure> {
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

fn checked(key: Vec<u8>) -> Result<Vec<u8>, &'static str> {
    match key.len() {
        0 => Err("empty key"),
        n if n > MAX_KEY => Err("key too long"),
        _ => Ok(key),
    }
}

/// How long an entry is to live, in argument `at`, in seconds.
fn lifetime(stack: &Stack, at: i32) -> Result<f64, Failure> {
    match stack.kind(at) {
        Kind::Number => match number(stack, at)? {
            time if time < 0.0 => fail("bad \"exptime\" argument"),
            time => Ok(time),
        },
        Kind::Cdata => Ok(0.0),
        _ if !stack.boolean(at) => Ok(0.0),
        kind => fail(format!("attempt to compare {} with number", kind.name())),
    }
}

/// A number, or a text that reads as one, in argument `at`.
fn as_number(stack: &Stack, at: i32, what: &str) -> Result<Option<f64>, Failure> {
    match (stack.kind(at), stack.number(at)) {
        (_, Some(number)) => Ok(Some(number)),
        (Kind::Nil | Kind::None, None) => Ok(None),
        (kind, None) => fail(format!(
            "bad {what} arg: number expected, got {}",
            kind.name()
        )),
    }
}

fn now() -> u64 {
    rt::wall_millis()
}

fn push_item(stack: &Stack, item: &Item) {
    match item {
        Item::Boolean(value) => stack.push_boolean(*value),
        Item::Number(value) => stack.push_number(*value),
        Item::Bytes(value) => stack.push_bytes(value),
        Item::List(_) => stack.push_nil(),
    }
}

fn get(stack: &Stack) -> Called {
    read(stack, false)
}

fn get_stale(stack: &Stack) -> Called {
    read(stack, true)
}

fn read(stack: &Stack, stale: bool) -> Called {
    let dictionary = dictionary(stack)?;
    let key = match key(stack)? {
        Ok(key) => key,
        Err(message) => return answer(stack, Value::failure(message)),
    };
    let now = now();
    let mut entries = dictionary.lock();
    if !stale {
        entries.tidy(now);
    }
    let entry = entries
        .get(&key, now)
        .filter(|entry| stale || !entry.is_stale(now));
    let Some(entry) = entry else {
        stack.push_nil();
        return super::ONE;
    };
    if matches!(entry.value, Item::List(_)) {
        return answer(stack, Value::failure("value is a list"));
    }
    push_item(stack, &entry.value);
    match entry.flags {
        0 if !stale => return super::ONE,
        0 => stack.push_nil(),
        flags => stack.push_number(f64::from(flags)),
    }
    if stale {
        stack.push_boolean(entry.is_stale(now));
    }
    Ok(Answer::Values(if stale { 3 } else { 2 }))
}

/// How a value is put.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Set,
    Add,
    Replace,
}

fn set(stack: &Stack) -> Called {
    write(stack, Mode::Set, true)
}

fn safe_set(stack: &Stack) -> Called {
    write(stack, Mode::Set, false)
}

fn add(stack: &Stack) -> Called {
    write(stack, Mode::Add, true)
}

fn safe_add(stack: &Stack) -> Called {
    write(stack, Mode::Add, false)
}

fn replace(stack: &Stack) -> Called {
    write(stack, Mode::Replace, true)
}

fn delete(stack: &Stack) -> Called {
    stack.set_top(2);
    write(stack, Mode::Set, true)
}

/// When something expires that lives for so many seconds.
fn expiry(seconds: f64, now: u64) -> u64 {
    if seconds <= 0.0 {
        0
    } else {
        now.saturating_add((seconds * 1000.0) as u64)
    }
}

/// Success or not, a message, whether good entries had to make room.
fn result(stack: &Stack, ok: bool, message: Option<&str>, forced: bool) -> Called {
    stack.push_boolean(ok);
    match message {
        Some(message) => stack.push_bytes(message),
        None => stack.push_nil(),
    }
    stack.push_boolean(forced);
    Ok(Answer::Values(3))
}

fn write(stack: &Stack, mode: Mode, may_force: bool) -> Called {
    let dictionary = dictionary(stack)?;
    let time = lifetime(stack, 4)?;
    let key = match key(stack)? {
        Ok(key) => key,
        Err(message) => return answer(stack, Value::failure(message)),
    };
    let value = match stack.kind(3) {
        Kind::Nil | Kind::None => None,
        Kind::Boolean => Some(Item::Boolean(stack.boolean(3))),
        Kind::Number => stack.number(3).map(Item::Number),
        Kind::String => Some(Item::Bytes(bytes(stack, 3)?.into())),
        _ => return answer(stack, Value::failure("bad value type")),
    };
    let flags = match stack.kind(5) {
        Kind::Number => as_int(number(stack, 5)?) as u32,
        Kind::Boolean => u32::from(stack.boolean(5)),
        Kind::Nil | Kind::None | Kind::Cdata => 0,
        _ => return fail("bad \"flags\" argument"),
    };
    if value.is_none() && mode != Mode::Set {
        return result(
            stack,
            false,
            Some("attempt to add or replace nil values"),
            false,
        );
    }
    let now = now();
    let mut entries = dictionary.lock();
    entries.tidy(now);
    let known = entries
        .get(&key, now)
        .is_some_and(|entry| !entry.is_stale(now));
    match mode {
        Mode::Add if known => return result(stack, false, Some("exists"), false),
        Mode::Replace if !known => return result(stack, false, Some("not found"), false),
        _ => {}
    }
    let Some(value) = value else {
        entries.remove(&key);
        return result(stack, true, None, false);
    };
    let new = New {
        value,
        flags,
        expires: expiry(time, now),
    };
    let put = entries.put(&key, new, now, may_force);
    let message = (!put.done).then_some("no memory");
    result(stack, put.done, message, put.forced)
}

fn incr(stack: &Stack) -> Called {
    let dictionary = dictionary(stack)?;
    let key = match key(stack)? {
        Ok(key) => key,
        Err(message) => return answer(stack, Value::failure(message)),
    };
    let Some(by) = stack.number(3) else {
        return fail("cannot convert 'nil' to 'double'");
    };
    let init = match stack.kind(4) {
        Kind::Boolean if !stack.boolean(4) => None,
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
    entries.tidy(now);
    let known = entries.get(&key, now);
    if let Some(entry) = known.filter(|entry| !entry.is_stale(now)) {
        let Item::Number(value) = &mut entry.value else {
            return answer(stack, Value::failure("not a number"));
        };
        *value += by;
        stack.push_number(*value);
        if init.is_none() {
            return super::ONE;
        }
        stack.push_nil();
        stack.push_boolean(false);
        return Ok(Answer::Values(3));
    }
    let Some(init) = init else {
        return answer(stack, Value::failure("not found"));
    };
    let new = New {
        value: Item::Number(init + by),
        flags: 0,
        expires: expiry(init_time, now),
    };
    let put = entries.put(&key, new, now, true);
    if !put.done {
        return answer(stack, Value::failure("no memory"));
    }
    stack.push_number(init + by);
    stack.push_nil();
    stack.push_boolean(put.forced);
    Ok(Answer::Values(3))
}

fn lpush(stack: &Stack) -> Called {
    push_to_list(stack, End::Front)
}

fn rpush(stack: &Stack) -> Called {
    push_to_list(stack, End::Back)
}

fn push_to_list(stack: &Stack, end: End) -> Called {
    let dictionary = dictionary(stack)?;
    let key = match strict_key(stack, 3)? {
        Ok(key) => key,
        Err(message) => return answer(stack, Value::failure(message)),
    };
    let item = match stack.kind(3) {
        Kind::Number => Item::Number(number(stack, 3)?),
        Kind::String => Item::Bytes(bytes(stack, 3)?.into()),
        _ => return answer(stack, Value::failure("bad value type")),
    };
    let (value, message) = match dictionary.lock().push(&key, item, end, now()) {
        Ok(length) => {
            stack.push_number(length as f64);
            return super::ONE;
        }
        Err(Refused::OtherKind) => (Value::Nil, "value not a list"),
        Err(Refused::Item) => (Value::Nil, "no memory"),
        Err(Refused::List) => (Value::Boolean(false), "no memory"),
    };
    answer(stack, vec![value, Value::Bytes(message.into())])
}

fn lpop(stack: &Stack) -> Called {
    pop_from_list(stack, End::Front)
}

fn rpop(stack: &Stack) -> Called {
    pop_from_list(stack, End::Back)
}

fn pop_from_list(stack: &Stack, end: End) -> Called {
    let dictionary = dictionary(stack)?;
    let key = match strict_key(stack, 2)? {
        Ok(key) => key,
        Err(message) => return answer(stack, Value::failure(message)),
    };
    let item = dictionary.lock().pop(&key, end, now());
    match item {
        Ok(Some(item)) => push_item(stack, &item),
        Ok(None) => stack.push_nil(),
        Err(message) => return answer(stack, Value::failure(message)),
    }
    super::ONE
}

fn llen(stack: &Stack) -> Called {
    let dictionary = dictionary(stack)?;
    let key = match strict_key(stack, 2)? {
        Ok(key) => key,
        Err(message) => return answer(stack, Value::failure(message)),
    };
    let now = now();
    let mut entries = dictionary.lock();
    entries.tidy(now);
    match entries.list(&key, now) {
        Ok(list) => stack.push_number(list.map_or(0, |list| list.len()) as f64),
        Err(message) => return answer(stack, Value::failure(message)),
    }
    super::ONE
}

fn ttl(stack: &Stack) -> Called {
    let dictionary = dictionary(stack)?;
    let key = match key(stack)? {
        Ok(key) => key,
        Err(message) => return answer(stack, Value::failure(message)),
    };
    let expires = dictionary.lock().peek(&key).map(|entry| entry.expires);
    match expires {
        None => return answer(stack, Value::failure("not found")),
        Some(0) => stack.push_number(0.0),
        // Below zero for one that is stale.
        Some(at) => stack.push_number((at as f64 - now() as f64) / 1000.0),
    }
    super::ONE
}

fn expire(stack: &Stack) -> Called {
    let dictionary = dictionary(stack)?;
    if !stack.boolean(3) {
        return fail("bad \"exptime\" argument");
    }
    let key = match key(stack)? {
        Ok(key) => key,
        Err(message) => return answer(stack, Value::failure(message)),
    };
    let Some(time) = stack.number(3) else {
        let kind = stack.kind(3).name();
        return fail(format!(
            "attempt to perform arithmetic on local 'exptime' (a {kind} value)"
        ));
    };
    let mut entries = dictionary.lock();
    match entries.peek(&key) {
        // One that is stale is good again.
        Some(entry) => entry.expires = expiry(time, now()),
        None => return answer(stack, Value::failure("not found")),
    }
    stack.push_boolean(true);
    super::ONE
}

fn flush_all(stack: &Stack) -> Called {
    dictionary(stack)?.lock().expire_all(now());
    super::NONE
}

fn flush_expired(stack: &Stack) -> Called {
    let dictionary = dictionary(stack)?;
    let max = match stack.top() {
        1 => usize::MAX,
        _ => most(as_int(number(stack, 2)?)),
    };
    let removed = dictionary.lock().remove_stale(max, now());
    stack.push_number(removed as f64);
    super::ONE
}

fn get_keys(stack: &Stack) -> Called {
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

fn capacity(stack: &Stack) -> Called {
    let size = dictionary(stack)?.size;
    stack.push_number(size as f64);
    super::ONE
}

fn free_space(stack: &Stack) -> Called {
    let free = dictionary(stack)?.lock().free();
    stack.push_number(free as f64);
    super::ONE
}

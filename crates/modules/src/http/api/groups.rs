//! `worker_groups`: several processes answer as one. Whichever was asked asks the others and adds their numbers up.

use std::rc::Rc;

use http::http_loop::HttpLoop;
use serde_json::{Value, json};

use super::failure::ApiFailure;
use super::resources::{self, ApiQuery};
use super::{angie, changes, keyval_changes};
use crate::shared::observation::Observation;
use crate::shared::status::StatusView;

/// The topic of questions: a path of the API, its names joined by a byte that is in none of them.
const READ: &str = "api";

/// The topic of questions for Angie's tree.
const READ_ANGIE: &str = "api angie";

/// Separates the names of a path.
const SEPARATOR: char = '\0';

/// Lets other worker groups ask for this one's numbers, and tell it of changes.
pub(super) fn answer_groups(http: &HttpLoop) {
    let group = http.zones.group();
    if http.index != 0 || !group.has_siblings() {
        return;
    }
    let zones = http.zones.clone();
    let view = move || {
        let site = Observation::of(&zones).site()?;
        Some(StatusView::new(site, &zones))
    };
    let of_read = view.clone();
    group.on_message(READ, move |path| {
        let path = std::str::from_utf8(path).ok()?;
        let names = path.split(SEPARATOR).filter(|name| !name.is_empty());
        let names: Vec<&str> = names.collect();
        let value = resources::read(&of_read()?, &ApiQuery::of(&names)).ok()?;
        Some(value.to_string().into_bytes())
    });
    let of_angie = view.clone();
    group.on_message(READ_ANGIE, move |_| {
        Some(angie::parts(&of_angie()?).to_string().into_bytes())
    });
    let of_changes = view.clone();
    group.on_message(changes::TOPIC, move |change| {
        changes::make_as_told(&of_changes()?, change)
    });
    group.on_message(keyval_changes::TOPIC, move |change| {
        keyval_changes::make_as_told(&view()?, change)
    });
}

/// What is asked for, of all groups.
pub(super) async fn read_all(
    engine: &Rc<HttpLoop>,
    view: StatusView,
    query: &ApiQuery,
) -> Result<Value, ApiFailure> {
    let pool = rt::pool::default_pool();
    let group = engine.zones.group();
    // The entries of a zone are the same in all groups, and so are servers; what is counted is not.
    let is_same = query
        .names
        .iter()
        .any(|name| name == "keyvals" || name == "servers");
    if !group.has_siblings() || is_same || query.names.is_empty() {
        let query = query.clone();
        return pool.run(move || resources::read(&view, &query)).await;
    }
    let path = query.names.join(&SEPARATOR.to_string());
    let answers = group.ask(READ, path.as_bytes());
    // Fields are chosen when all is added up.
    let own = query.clone();
    let mut value = pool.run(move || resources::read(&view, &own)).await?;
    for answer in answers {
        // One that has just crashed counts nothing.
        let Some(other) = answer.wait().await else {
            continue;
        };
        if let Ok(other) = serde_json::from_slice(&other) {
            add(&mut value, other, "");
        }
    }
    Ok(value)
}

/// The parts of Angie's tree, of all groups.
pub(super) async fn read_angie(
    engine: &Rc<HttpLoop>,
    view: StatusView,
) -> Result<Value, ApiFailure> {
    let pool = rt::pool::default_pool();
    let answers = engine.zones.group().ask(READ_ANGIE, b"");
    let mut value = pool.run(move || angie::parts(&view)).await;
    for answer in answers {
        if let Some(other) = answer.wait().await
            && let Ok(other) = serde_json::from_slice(&other)
        {
            add(&mut value, other, "");
        }
    }
    Ok(value)
}

/// Numbers that are the same in every process, or that a sum would say nothing about.
const NOT_ADDED: [&str; 15] = [
    "id",
    "pid",
    "ppid",
    "weight",
    "max_fails",
    "generation",
    "header_time",
    "response_time",
    "connect_time",
    "first_byte_time",
    "downtime",
    "status",
    "mtime",
    "free",
    "used",
];

/// Adds the numbers of another group. Only what this one has is added; lists of loops are joined.
fn add(own: &mut Value, other: Value, name: &str) {
    match (own, other) {
        (Value::Object(own), Value::Object(mut other)) => {
            for (name, value) in own.iter_mut() {
                if let Some(other) = other.remove(name) {
                    add(value, other, name);
                }
            }
            // Such as a status that only the other one has sent.
            if name == "codes" || name == "responses" {
                own.append(&mut other);
            }
        }
        (Value::Array(own), Value::Array(other)) if name == "peers" => {
            for peer in other {
                let same = own.iter_mut().find(|known| known["id"] == peer["id"]);
                if let Some(known) = same {
                    add(known, peer, "");
                }
            }
        }
        (Value::Array(own), Value::Array(mut other)) => own.append(&mut other),
        (Value::Number(own), Value::Number(other)) if !NOT_ADDED.contains(&name) => {
            if let (Some(one), Some(two)) = (own.as_u64(), other.as_u64()) {
                *own = (one + two).into();
            }
        }
        // Texts and answers by yes or no: a server is what it is for the group that was asked.
        _ => {}
    }
}

/// Tells all other groups of a change, and waits until they have made it.
pub(super) async fn tell(engine: &Rc<HttpLoop>, topic: &str, change: &Value) {
    let answers = engine
        .zones
        .group()
        .ask(topic, change.to_string().as_bytes());
    for answer in answers {
        // One that does not answer has crashed, and reads the file when it comes back.
        let _done = answer.wait().await;
    }
}

/// The answer of a group that has made a change.
pub(super) fn done() -> Vec<u8> {
    json!({}).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_groups_are_added() {
        let mut own = json!({ "peers": [{ "id": 1, "requests": 2, "weight": 5, "state": "up" }],
                              "codes": { "200": 1 }, "keepalive": 3 });
        let other = json!({ "peers": [{ "id": 2, "requests": 9 }, { "id": 1, "requests": 40, "weight": 5 }],
                            "codes": { "200": 2, "404": 1 }, "keepalive": 4, "new": 1 });
        add(&mut own, other, "");
        let expected = json!({ "peers": [{ "id": 1, "requests": 42, "weight": 5, "state": "up" }],
                               "codes": { "200": 3, "404": 1 }, "keepalive": 7 });
        assert_eq!(own, expected);
        let mut loops = json!([{ "id": 0 }]);
        add(&mut loops, json!([{ "id": 1 }]), "");
        assert_eq!(loops, json!([{ "id": 0 }, { "id": 1 }]));
    }
}

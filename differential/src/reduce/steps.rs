//! All cases that are one step smaller: without a directive, a word, a line of a head, a part of a content.

use crate::case::tree::{Block, Node};
use crate::case::{Act, Body, Case, Content, Request, Step};

/// All cases that are one step smaller.
pub(super) fn smaller(case: &Case) -> Vec<Case> {
    let mut found = Vec::new();
    let trees: [fn(&mut Case) -> &mut Vec<Node>; 4] = [
        |case| &mut case.main,
        |case| &mut case.ambient,
        |case| &mut case.http,
        |case| &mut case.stream,
    ];
    for tree in trees {
        let mut original = case.clone();
        for nodes in smaller_trees(tree(&mut original)) {
            let mut next = case.clone();
            *tree(&mut next) = nodes;
            found.push(next);
        }
    }
    for i in 0..case.files.len() {
        found.push(with(case, |next| drop(next.files.remove(i))));
        for content in smaller_contents(&case.files[i].content) {
            found.push(with(case, |next| next.files[i].content = content.clone()));
        }
    }
    smaller_upstreams(case, &mut found);
    smaller_talks(case, &mut found);
    found
}

fn with(case: &Case, change: impl FnOnce(&mut Case)) -> Case {
    let mut next = case.clone();
    change(&mut next);
    next
}

/// Without one of the directives; with the content of a block in place of the block; with a word less; and the same below.
fn smaller_trees(nodes: &[Node]) -> Vec<Vec<Node>> {
    let mut found = Vec::new();
    for (i, node) in nodes.iter().enumerate() {
        let mut replace = |by: Vec<Node>| {
            let mut next = nodes.to_vec();
            next.splice(i..=i, by);
            found.push(next);
        };
        let is_listen = node.name() == "listen";
        if !is_listen {
            replace(Vec::new());
        }
        let keeps_block = ["server", "http", "upstream", "map", "geo"].contains(&node.name());
        if !node.children().is_empty() && !keeps_block {
            replace(node.children().to_vec());
        }
        // Without a socket of its own a server listens on port 80, where only one side can.
        let first = if is_listen { 2 } else { 1 };
        for word in (first..node.words.len()).rev() {
            let mut less = node.clone();
            less.words.remove(word);
            replace(vec![less]);
        }
        for children in smaller_trees(node.children()) {
            let mut less = node.clone();
            less.block = Some(Block::Directives(children));
            replace(vec![less]);
        }
    }
    found
}

fn smaller_contents(content: &Content) -> Vec<Content> {
    let mut found = Vec::new();
    for i in 0..content.parts.len() {
        let mut less = content.clone();
        less.parts.remove(i);
        if less.parts.is_empty() {
            // Nothing is written as an empty text.
            less = Content::new("");
        }
        found.push(less);
        let (text, times) = &content.parts[i];
        let mut cut = |text: Vec<u8>, times: usize| {
            let mut less = content.clone();
            less.parts[i] = (text, times);
            found.push(less);
        };
        if *times > 1 {
            cut(text.clone(), times / 2);
            cut(text.clone(), 1);
        }
        // A head loses its lines one by one, anything else its second half.
        let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
        if lines.len() > 1 {
            for without in 0..lines.len() {
                let rest = lines.iter().enumerate().filter(|(j, _)| *j != without);
                cut(rest.flat_map(|(_, line)| line.to_vec()).collect(), *times);
            }
        } else if text.len() > 8 {
            cut(text[..text.len() / 2].to_vec(), *times);
        }
    }
    // A step that changes nothing would be taken for ever.
    found.retain(|less| less != content);
    found
}

fn smaller_upstreams(case: &Case, found: &mut Vec<Case>) {
    for (i, upstream) in case.upstreams.iter().enumerate() {
        for (j, answer) in upstream.answers.iter().enumerate() {
            if upstream.answers.len() > 1 {
                found.push(with(case, |next| drop(next.upstreams[i].answers.remove(j))));
            }
            for (k, act) in answer.iter().enumerate() {
                found.push(with(case, |next| {
                    drop(next.upstreams[i].answers[j].remove(k))
                }));
                if let Act::Send(content) = act {
                    for content in smaller_contents(content) {
                        found.push(with(case, |next| {
                            next.upstreams[i].answers[j][k] = Act::Send(content.clone());
                        }));
                    }
                }
            }
        }
    }
    // The last one goes as a whole when nothing names it.
    if !case.upstreams.is_empty() {
        found.push(with(case, |next| drop(next.upstreams.pop())));
    }
}

fn smaller_talks(case: &Case, found: &mut Vec<Case>) {
    let connections: Vec<usize> = case
        .talk
        .iter()
        .filter_map(|step| match step {
            Step::Connect { connection, .. } | Step::Http2 { connection, .. } => Some(*connection),
            _ => None,
        })
        .collect();
    for wanted in connections {
        let is_other = |step: &Step| connection_of(step) != Some(wanted);
        found.push(with(case, |next| next.talk.retain(is_other)));
        let is_it = |step: &Step| connection_of(step).is_none_or(|number| number == wanted);
        found.push(with(case, |next| next.talk.retain(is_it)));
    }
    for (i, step) in case.talk.iter().enumerate() {
        found.push(with(case, |next| drop(next.talk.remove(i))));
        match step {
            Step::Request {
                connection,
                request,
            } => {
                let follows = matches!(case.talk.get(i + 1), Some(Step::Read { .. }));
                if follows {
                    found.push(with(case, |next| drop(next.talk.drain(i..i + 2))));
                }
                for request in smaller_requests(request) {
                    let connection = *connection;
                    found.push(with(case, |next| {
                        next.talk[i] = Step::Request {
                            connection,
                            request,
                        };
                    }));
                }
            }
            Step::Send { connection, bytes } => {
                for bytes in smaller_contents(bytes) {
                    let connection = *connection;
                    found.push(with(case, |next| {
                        next.talk[i] = Step::Send { connection, bytes };
                    }));
                }
            }
            _ => {}
        }
    }
}

pub(super) fn connection_of(step: &Step) -> Option<usize> {
    match step {
        Step::Connect { connection, .. }
        | Step::Http2 { connection, .. }
        | Step::Tls { connection, .. }
        | Step::Send { connection, .. }
        | Step::Frame { connection, .. }
        | Step::Hold { connection }
        | Step::Look { connection, .. }
        | Step::Request { connection, .. }
        | Step::Read { connection }
        | Step::Rest { connection }
        | Step::Half { connection }
        | Step::Close { connection } => Some(*connection),
        Step::Await { .. } | Step::Datagram { .. } | Step::Pause(_) => None,
    }
}

fn smaller_requests(request: &Request) -> Vec<Request> {
    let mut found = Vec::new();
    let mut add = |change: &dyn Fn(&mut Request)| {
        let mut less = request.clone();
        change(&mut less);
        if less != *request {
            found.push(less);
        }
    };
    for i in 0..request.fields.len() {
        add(&|less| drop(less.fields.remove(i)));
    }
    add(&|less| less.body = Body::None);
    add(&|less| {
        if let Body::Length(content) = &mut less.body {
            *content = Content::new("a");
        }
    });
    add(&|less| {
        if let Body::Chunked(chunks, trailers) = &mut less.body {
            chunks.truncate(1);
            trailers.clear();
        }
    });
    add(&|less| {
        if let Some((path, _)) = less.target.split_once('?') {
            less.target = path.to_owned();
        }
    });
    if let Some(at) = request.target.rfind('/').filter(|at| *at > 0) {
        add(&|less| less.target.truncate(at));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::text;

    #[test]
    fn every_step_makes_a_case_that_can_be_read() {
        let source = "[case x]\n[http]\nserver { listen %%PORT0%%; location / { if ($a) { return 200 a; } } }\n\
            [file a]\n\"abc\"*9\n[upstream http]\nsend \"HTTP/1.1 200 OK\\r\\nA: b\\r\\n\\r\\n\" | close\n\
            [talk]\nconnect 0 to 0\nrequest 0 GET /a/b?c HTTP/1.1\n+ Host: a\n~ \"a\"\n~ \"\"\n^ T: v\nread 0\n";
        let case = text::parse(source).expect("it is a case");
        let found = smaller(&case);
        assert!(found.len() > 20);
        for next in &found {
            let printed = text::print(next);
            assert_eq!(text::parse(&printed).as_ref(), Ok(next), "{printed}");
        }
    }
}

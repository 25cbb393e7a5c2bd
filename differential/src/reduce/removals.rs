//! What can be removed from a case, by its place, so that many removals can be done at once.

use crate::case::tree::Node;
use crate::case::{Case, Step};

/// A removal. The order is that of places, so that going backwards keeps the places before it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Removal {
    /// A directive: which tree, and the way down to it.
    Node(usize, Vec<usize>),
    /// A file.
    File(usize),
    /// All steps of a connection.
    Connection(usize),
    /// A field of a request: the step, and which.
    Field(usize, usize),
    /// An act of a server behind: which server, answer, act.
    Act(usize, usize, usize),
}

const TREES: [fn(&mut Case) -> &mut Vec<Node>; 4] = [
    |case| &mut case.main,
    |case| &mut case.ambient,
    |case| &mut case.http,
    |case| &mut case.stream,
];

/// Everything that can be removed.
pub(super) fn all(case: &Case) -> Vec<Removal> {
    let mut found = Vec::new();
    let mut copy = case.clone();
    for (number, tree) in TREES.iter().enumerate() {
        nodes(tree(&mut copy), &mut Vec::new(), number, &mut found);
    }
    found.extend((0..case.files.len()).map(Removal::File));
    for (at, step) in case.talk.iter().enumerate() {
        match step {
            Step::Connect { connection, .. } | Step::Http2 { connection, .. } => {
                found.push(Removal::Connection(*connection))
            }
            Step::Request { request, .. } => {
                let fields = 0..request.fields.len();
                found.extend(fields.map(|field| Removal::Field(at, field)));
            }
            _ => {}
        }
    }
    for (i, upstream) in case.upstreams.iter().enumerate() {
        for (j, answer) in upstream.answers.iter().enumerate() {
            found.extend((0..answer.len()).map(|k| Removal::Act(i, j, k)));
        }
    }
    found.sort();
    found
}

fn nodes(list: &[Node], way: &mut Vec<usize>, tree: usize, found: &mut Vec<Removal>) {
    for (i, node) in list.iter().enumerate() {
        way.push(i);
        // Without it a server listens on port 80, where only one side can.
        if node.name() != "listen" {
            found.push(Removal::Node(tree, way.clone()));
        }
        nodes(node.children(), way, tree, found);
        way.pop();
    }
}

/// Chunks of all sizes from a half down to one, as many as are allowed; large ones first.
pub(super) fn chunks(all: &[Removal], most: usize) -> Vec<Vec<Removal>> {
    let mut found: Vec<Vec<Removal>> = Vec::new();
    let mut size = all.len().div_ceil(2);
    while size > 0 && found.len() < most {
        found.extend(all.chunks(size).map(<[Removal]>::to_vec));
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    found.truncate(most);
    found
}

/// The case without these.
pub(super) fn without(case: &Case, removals: &[Removal]) -> Case {
    let mut next = case.clone();
    let mut sorted: Vec<&Removal> = removals.iter().collect();
    sorted.sort();
    // Connections last: what is in them is found by the number of the step.
    for removal in sorted.iter().rev() {
        match removal {
            Removal::Node(tree, way) => remove(TREES[*tree](&mut next), way),
            Removal::File(file) => {
                if *file < next.files.len() {
                    next.files.remove(*file);
                }
            }
            Removal::Field(step, field) => {
                if let Some(Step::Request { request, .. }) = next.talk.get_mut(*step)
                    && *field < request.fields.len()
                {
                    request.fields.remove(*field);
                }
            }
            Removal::Act(upstream, answer, act) => {
                let acts = next.upstreams.get_mut(*upstream);
                let acts = acts.and_then(|upstream| upstream.answers.get_mut(*answer));
                if let Some(acts) = acts.filter(|acts| *act < acts.len()) {
                    acts.remove(*act);
                }
            }
            Removal::Connection(_) => {}
        }
    }
    for removal in sorted {
        if let Removal::Connection(number) = removal {
            let is_other = |step: &Step| super::steps::connection_of(step) != Some(*number);
            next.talk.retain(is_other);
        }
    }
    next
}

/// Removes what is at the end of the way; nothing where something above it is gone.
fn remove(nodes: &mut Vec<Node>, way: &[usize]) {
    match way {
        [] => {}
        [last] => {
            if *last < nodes.len() {
                nodes.remove(*last);
            }
        }
        [first, rest @ ..] => {
            if let Some(children) = nodes.get_mut(*first).and_then(Node::children_mut) {
                remove(children, rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::text;

    #[test]
    fn removals_together_are_removals_one_by_one() {
        let source = "[case x]\n[http]\nserver { index x; location / { a; b; } c; }\n[file a]\n\"a\"\n[file b]\n\"b\"\n\
            [talk]\nconnect 0 to 0\nrequest 0 GET / HTTP/1.1\n+ Host: a\n+ X: y\nread 0\n";
        let case = text::parse(source).expect("it is a case");
        let all = all(&case);
        assert_eq!(all.len(), 6 + 2 + 1 + 2);
        let empty = without(&case, &all);
        assert!(empty.http.is_empty() && empty.files.is_empty() && empty.talk.is_empty());
        let some = without(
            &case,
            &[
                Removal::Node(2, vec![0, 1, 0]),
                Removal::Node(2, vec![0, 2]),
                Removal::Field(1, 0),
            ],
        );
        let printed = text::print(&some);
        assert!(
            printed.contains("b;") && !printed.contains("a;") && !printed.contains("c;"),
            "{printed}"
        );
        assert!(
            !printed.contains("Host") && printed.contains("X: y"),
            "{printed}"
        );
    }
}

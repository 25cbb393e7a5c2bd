//! Many cases in one start of each server: one configuration, one file of logs, and the cases' conversations side by side.
//!
//! A start of a server costs more than a hundred requests, so cases are put together. What a server refuses is found by
//! the line that it names; that case is taken out, and the rest goes on.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use weir_tests::Port;

use crate::case::fill::Places;
use crate::case::tree;
use crate::case::{Case, Content, Step};
use crate::observe::{CONNECTION, Equal, Observation, error_line, log_format, log_line};
use crate::side::certificates;
use crate::side::client::{ClientPorts, Observed, Patience, aligned, converse};
use crate::side::server::{Program, Refusal, Running};
use crate::side::upstream::{Behind, Received};
use crate::side::{ADDRESSES, FOLDERS};
use crate::spent::Spent;
use crate::version::Version;

/// What came of a case.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// At least one of the servers refused the configuration: what each said.
    Refused([Option<Refusal>; 2]),
    /// Both served: what each showed.
    Seen(Box<[Observation; 2]>),
    /// The machine itself failed: why. This is no difference.
    Failed(String),
}

/// The two servers, and how patient the client is.
#[derive(Clone, Debug)]
pub struct Bench {
    /// nginx, and Weir.
    pub programs: [Program; 2],
    /// For what has to come.
    pub patience: Patience,
    /// How many conversations at a time.
    pub threads: usize,
    /// Where the time goes.
    pub spent: Arc<Spent>,
}

/// What every case has in its `http` block.
const COMMON: &str = "server_tokens off;\nclient_body_temp_path temp_body;\nproxy_temp_path temp_proxy;\n\
    fastcgi_temp_path temp_fastcgi;\nuwsgi_temp_path temp_uwsgi;\nscgi_temp_path temp_scgi;\n\
    access_log access.log differential;\nserver_names_hash_bucket_size 128;\nvariables_hash_max_size 4096;\n\
    map_hash_bucket_size 256;\nproxy_http_version 1.1;\n";

/// The time of change of every file of a case, so that `Last-Modified` and `ETag` can be written into cases:
/// Sun, 09 Sep 2001 01:46:40 GMT.
pub const MODIFIED: u64 = 1_000_000_000;

impl Bench {
    /// The same for the many candidates of a reduction: less patient.
    pub fn for_reduction(&self) -> Bench {
        Bench {
            patience: Patience {
                wait: Duration::from_millis(500),
            },
            threads: 100,
            ..self.clone()
        }
    }

    /// Runs cases that have the same ambient directives. There is an outcome for each.
    pub fn run(&self, cases: &[Case]) -> Vec<Outcome> {
        let start = self.spent.on("files", || Start::new(cases));
        match start.and_then(|start| start.run(self)) {
            Ok(outcomes) => outcomes,
            Err(why) => vec![Outcome::Failed(why); cases.len()],
        }
    }
}

/// What the folders of starts are called, in front of the process that made them.
const FOLDER: &str = "weir-differential-";

/// Removes the folders of machines that were killed, which could not do it themselves.
pub fn sweep() {
    for entry in fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        let of = name.to_str().and_then(|name| name.strip_prefix(FOLDER));
        let process = of.and_then(|of| Some(of.split_once('-')?.0));
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // Another machine may be at it.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A port that is free on both sides.
fn port() -> Port {
    loop {
        let port = Port::take();
        if TcpListener::bind((ADDRESSES[1], port.number())).is_ok() {
            return port;
        }
    }
}

/// True when a configuration names a certificate of the machine's.
fn names_certificates(nodes: &[tree::Node]) -> bool {
    let is_one = |node: &tree::Node| node.words.iter().any(|word| word.contains("%%TLS%%"));
    let mut nodes = nodes.iter();
    nodes.any(|node| is_one(node) || names_certificates(node.children()))
}

/// The folder and the ports of a start. The folder goes away with it.
struct Start<'a> {
    cases: &'a [Case],
    folder: PathBuf,
    /// For each case: its ports, and those of the servers behind it.
    ports: Vec<(Vec<Port>, Vec<Port>)>,
    /// Where each server answers whatever its cases do.
    probe: Port,
}

impl Drop for Start<'_> {
    fn drop(&mut self) {
        // A folder that stays behind harms nobody.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl<'a> Start<'a> {
    fn new(cases: &'a [Case]) -> Result<Self, String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{FOLDER}{}-{number}", std::process::id());
        let take = |count: usize| (0..count).map(|_| port()).collect::<Vec<_>>();
        let start = Start {
            cases,
            folder: std::env::temp_dir().join(name),
            ports: cases
                .iter()
                .map(|case| (take(case.ports()), take(case.upstreams.len())))
                .collect(),
            probe: port(),
        };
        start
            .prepare()
            .map_err(|error| format!("{}: {error}", start.folder.display()))?;
        Ok(start)
    }

    fn prepare(&self) -> std::io::Result<()> {
        for side in FOLDERS {
            fs::create_dir_all(self.folder.join(side))?;
        }
        let mut steps = self.cases.iter().flat_map(|case| &case.talk);
        let names_one =
            |case: &Case| names_certificates(&case.http) || names_certificates(&case.stream);
        if steps.any(|step| matches!(step, Step::Tls { .. })) || self.cases.iter().any(names_one) {
            certificates::write(&self.folder.join("tls"))?;
        }
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED);
        // Most cases of an area have the same files: links take a tenth of the time of copies.
        let mut written: HashMap<&Content, PathBuf> = HashMap::new();
        for (number, case) in self.cases.iter().enumerate() {
            for side in 0..2 {
                fs::create_dir_all(self.places(number, side).own)?;
            }
            let places = self.places(number, 0);
            fs::create_dir_all(&places.files)?;
            for file in &case.files {
                let path = places.files.join(&file.path);
                if file.path.ends_with('/') {
                    fs::create_dir_all(&path)?;
                    continue;
                }
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent)?;
                }
                if let Some(same) = written.get(&file.content) {
                    // A path that a case names twice exists already.
                    let _ = fs::remove_file(&path);
                    fs::hard_link(same, &path)?;
                    continue;
                }
                let mut out = fs::File::create(&path)?;
                out.write_all(&file.content.bytes())?;
                out.set_modified(modified)?;
                written.insert(&file.content, path);
            }
        }
        Ok(())
    }

    fn places(&self, number: usize, side: usize) -> Places {
        let numbers = |ports: &[Port]| ports.iter().map(Port::number).collect();
        let (ports, upstreams) = &self.ports[number];
        Places {
            address: ADDRESSES[side],
            ports: numbers(ports),
            upstreams: numbers(upstreams),
            probe: self.probe.number(),
            number,
            tls: self.folder.join("tls"),
            files: self.folder.join(format!("files/{number:03}")),
            own: self
                .folder
                .join(format!("{}/own/{number:03}", FOLDERS[side])),
        }
    }

    /// Writes the configuration of a side; for each line the case that it belongs to.
    fn write(
        &self,
        program: &Program,
        side: usize,
        out: &[bool],
    ) -> Result<Vec<Option<usize>>, String> {
        let mut text = String::from("daemon off;\npid nginx.pid;\nerror_log error.log info;\n");
        if rustix::process::geteuid().is_root() {
            text.push_str("user root;\n");
        }
        let streams = (0..self.cases.len())
            .any(|number| !out[number] && !self.cases[number].stream.is_empty());
        if let Some(module) = program.stream.as_ref().filter(|_| streams) {
            text.push_str(&format!("load_module {};\n", module.display()));
        }
        let mut lines = vec![None; text.lines().count()];
        let mut add = |text: &mut String, more: &str, owner: Option<usize>| {
            text.push_str(more);
            lines.extend(more.lines().map(|_| owner));
        };
        let wanted = || (0..self.cases.len()).filter(|number| !out[*number]);
        let printed = |nodes: &[tree::Node], number: usize| {
            let mut part = String::new();
            tree::print(nodes, 1, &mut part);
            self.places(number, side).text(&part)
        };
        for number in wanted() {
            let part = printed(&self.cases[number].main, number);
            // What several cases want of the main context is wanted once: a module is loaded once.
            if !text.contains(&part) {
                add(&mut text, &part, Some(number));
            }
        }
        add(
            &mut text,
            "events { worker_connections 8192; }\nhttp {\n",
            None,
        );
        add(&mut text, &log_format(), None);
        add(&mut text, COMMON, None);
        let probe = format!("{}:{}", ADDRESSES[side], self.probe.number());
        let probe = format!("server {{ listen {probe}; access_log off; return 204; }}\n");
        if let Some(first) = self.cases.first() {
            let part = printed(&first.ambient, 0);
            add(&mut text, &part, None);
        }
        for number in wanted() {
            let part = printed(&self.cases[number].http, number);
            add(&mut text, &part, Some(number));
        }
        add(&mut text, &probe, None);
        add(&mut text, "}\n", None);
        if streams {
            add(&mut text, "stream {\n", None);
            for number in wanted() {
                let part = printed(&self.cases[number].stream, number);
                add(&mut text, &part, Some(number));
            }
            add(&mut text, "}\n", None);
        }
        fs::write(self.side(side).join("nginx.conf"), text).map_err(|error| error.to_string())?;
        Ok(lines)
    }

    fn side(&self, side: usize) -> PathBuf {
        self.folder.join(FOLDERS[side])
    }

    fn run(&self, bench: &Bench) -> Result<Vec<Outcome>, String> {
        // Weir tells all errors at once and nginx one, so nginx is started on what Weir takes, and asked about each of the
        // others alone.
        let spent = &bench.spent;
        let all = vec![false; self.cases.len()];
        let (weir, running_weir) = spent.on("start of Weir", || self.start(bench, 1, &all))?;
        let refused_there: Vec<bool> = weir.iter().map(Option::is_some).collect();
        let (mut oracle, running_oracle) =
            spent.on("start of nginx", || self.start(bench, 0, &refused_there))?;
        for number in (0..self.cases.len()).filter(|number| refused_there[*number]) {
            let others: Vec<bool> = (0..self.cases.len()).map(|other| other != number).collect();
            let lines = self.write(&bench.programs[0], 0, &others)?;
            let said = spent.on("refusals alone", || bench.programs[0].test(&self.side(0)))?;
            oracle[number] = said.into_iter().next().map(|said| said.within(&lines));
        }
        let refused = [oracle, weir];
        let wanted: Vec<usize> = (0..self.cases.len())
            .filter(|number| refused.iter().all(|side| side[*number].is_none()))
            .collect();
        let mut outcomes = spent.on("conversations", || self.serve(bench, &wanted));
        for running in [running_oracle, running_weir].into_iter().flatten() {
            spent.on("end", || running.stop());
        }
        let versions = [0, 1].map(|side| bench.programs[side].version);
        spent.on("logs", || self.add_logs(&mut outcomes, versions));
        let outcomes = outcomes
            .into_iter()
            .enumerate()
            .map(|(number, seen)| match seen {
                Some(outcome) => outcome,
                None => Outcome::Refused([refused[0][number].clone(), refused[1][number].clone()]),
            });
        Ok(outcomes.collect())
    }

    /// Starts a side on the cases that are not `left_out`: takes those out that it refuses, and tries again. Nothing runs
    /// when no case is left.
    fn start(
        &self,
        bench: &Bench,
        side: usize,
        left_out: &[bool],
    ) -> Result<(Vec<Option<Refusal>>, Option<Running>), String> {
        let program = &bench.programs[side];
        let mut refused: Vec<Option<Refusal>> = vec![None; self.cases.len()];
        loop {
            let pairs = refused.iter().zip(left_out);
            let out: Vec<bool> = pairs
                .map(|(refused, left)| refused.is_some() || *left)
                .collect();
            if out.iter().all(|out| *out) {
                return Ok((refused, None));
            }
            let lines = self.write(program, side, &out)?;
            let said = match program.start(&self.side(side))? {
                Ok(running) => return Ok((refused, Some(running))),
                Err(said) => said,
            };
            let before = refused.iter().flatten().count();
            for refusal in &said {
                let line = refusal
                    .line
                    .and_then(|line| lines.get(line.checked_sub(1)?));
                if let Some(Some(number)) = line {
                    let first =
                        refused[*number].get_or_insert_with(|| refusal.clone().within(&lines));
                    first.others.push(refusal.message.clone());
                }
            }
            if refused.iter().flatten().count() == before {
                let Some(first) = said.into_iter().next() else {
                    return Err("it does not start, and does not say why".to_owned());
                };
                match self.search(program, side, &out)? {
                    Some((number, said)) => {
                        let mut refusal = said.first().cloned().unwrap_or(first);
                        refusal.others = said.into_iter().map(|said| said.message).collect();
                        refused[number] = Some(refusal);
                    }
                    None => return Err(format!("refused without a case: {}", first.message)),
                }
            }
        }
    }

    /// Finds a case that is refused alone, where no line tells which one it is, by halves; and all that is said of it.
    fn search(
        &self,
        program: &Program,
        side: usize,
        out: &[bool],
    ) -> Result<Option<(usize, Vec<Refusal>)>, String> {
        let mut suspects: Vec<usize> = (0..out.len()).filter(|number| !out[*number]).collect();
        while suspects.len() > 1 {
            let (left, right) = suspects.split_at(suspects.len() / 2);
            let without: Vec<bool> = (0..out.len())
                .map(|number| !left.contains(&number))
                .collect();
            self.write(program, side, &without)?;
            let is_left = !program.test(&self.side(side))?.is_empty();
            suspects = if is_left {
                left.to_vec()
            } else {
                right.to_vec()
            };
        }
        let Some(&last) = suspects.first() else {
            return Ok(None);
        };
        let alone: Vec<bool> = (0..out.len()).map(|number| number != last).collect();
        self.write(program, side, &alone)?;
        let said = program.test(&self.side(side))?;
        Ok((!said.is_empty()).then_some((last, said)))
    }

    /// Has the conversations of these cases.
    fn serve(&self, bench: &Bench, wanted: &[usize]) -> Vec<Option<Outcome>> {
        let mut outcomes: Vec<Option<Outcome>> = vec![None; self.cases.len()];
        let next = &AtomicUsize::new(0);
        let work = move || {
            let mut done = Vec::new();
            while let Some(&number) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                done.push((number, self.converse(bench, number)));
            }
            done
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..bench.threads).map(|_| scope.spawn(work)).collect();
            for thread in threads {
                for (number, outcome) in thread.join().unwrap_or_default() {
                    outcomes[number] = Some(match outcome {
                        Ok(seen) => Outcome::Seen(Box::new(seen)),
                        Err(why) => Outcome::Failed(why),
                    });
                }
            }
        });
        for number in wanted {
            let lost = || Outcome::Failed("a conversation failed".to_owned());
            outcomes[*number].get_or_insert_with(lost);
        }
        outcomes
    }

    fn converse(&self, bench: &Bench, number: usize) -> Result<[Observation; 2], String> {
        let case = &self.cases[number];
        type Seen = (Vec<Observed>, ClientPorts, Vec<Vec<Received>>);
        let one = |side: usize| -> Result<Seen, String> {
            let places = self.places(number, side);
            let behind = case
                .upstreams
                .iter()
                .enumerate()
                .map(|(i, upstream)| Behind::start(upstream, i, &places))
                .collect::<Result<Vec<_>, _>>()?;
            let (events, ports) = converse(&case.talk, &places, &behind, bench.patience);
            let received = behind.into_iter().map(Behind::stop).collect();
            Ok((events, ports, received))
        };
        // Both at a time: what neither of them answers is waited for once.
        let (oracle, weir) = std::thread::scope(|scope| {
            let oracle = scope.spawn(|| one(0));
            let weir = one(1);
            let failed = |_| Err("a conversation failed".to_owned());
            (oracle.join().unwrap_or_else(failed), weir)
        });
        let (oracle, weir) = (oracle?, weir?);
        let mut rest = [(oracle.1, oracle.2), (weir.1, weir.2)].into_iter();
        let (sides, steps) = aligned([oracle.0, weir.0]);
        Ok(sides.map(|events| {
            let (ports, received) = rest.next().unwrap_or_default();
            Observation {
                events,
                steps: steps.clone(),
                ports,
                received,
                ..Observation::default()
            }
        }))
    }

    /// Adds what the servers wrote, now that they have ended, and makes the sides equal where only places differ.
    fn add_logs(&self, outcomes: &mut [Option<Outcome>], versions: [Version; 2]) {
        let mut owners = HashMap::new();
        for (number, (ports, _)) in self.ports.iter().enumerate() {
            owners.extend(ports.iter().map(|port| (port.number(), number)));
        }
        for side in 0..2 {
            let bytes = fs::read(self.side(side).join("access.log")).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            for (port, client, mut values) in text.lines().filter_map(log_line) {
                let outcome = owners
                    .get(&port)
                    .and_then(|number| outcomes[*number].as_mut());
                if let Some(Outcome::Seen(seen)) = outcome {
                    if let Some(connection) = seen[side].ports.get(&client) {
                        values.insert(0, (CONNECTION.to_owned(), connection.to_string()));
                    }
                    seen[side].log.push(values);
                }
            }
        }
        for (number, outcome) in outcomes.iter_mut().enumerate() {
            let Some(Outcome::Seen(seen)) = outcome else {
                continue;
            };
            for side in 0..2 {
                let own = self.places(number, side).own;
                let errors = fs::read(own.join("error.log")).unwrap_or_default();
                let errors = String::from_utf8_lossy(&errors);
                seen[side].errors = errors.lines().map(error_line).collect();
                seen[side].files = files(&own);
                self.equal(side, versions).make(&mut seen[side]);
            }
        }
    }

    fn equal(&self, side: usize, versions: [Version; 2]) -> Equal {
        let mut pairs = Vec::new();
        if side == 1 {
            let folder = |side: usize| format!("{}/", self.side(side).display()).into_bytes();
            pairs.push((folder(1), folder(0)));
            pairs.push((ADDRESSES[1].into(), ADDRESSES[0].into()));
        }
        // Versions are equally long too, or lengths would differ.
        for version in versions {
            pairs.push((
                format!("nginx/{version}").into_bytes(),
                b"nginx/VERSION".to_vec(),
            ));
        }
        let files = format!("{}/", self.folder.display()).into_bytes();
        pairs.push((files, b"/FOLDER/".to_vec()));
        Equal { pairs }
    }
}

/// The files below a folder, by name; bounded, since a cache may be among them.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    const MOST: usize = 50;
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.strip_prefix(folder).unwrap_or(&path);
            let name = name.to_string_lossy().into_owned();
            // Caches are laid out differently, and it is no promise.
            if name.starts_with("cache") || name.ends_with(".log") || found.len() >= MOST {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push((name, fs::read(&path).unwrap_or_default()));
            }
        }
    }
    found.sort();
    found
}

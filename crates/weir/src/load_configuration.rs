//! From configuration files to a running configuration: reading, checking, building.
//!
//! The same function serves the master, which reads the disk, and the worker, which reads what the
//! master has recorded: both have the same configuration even if a file changes in between. It has
//! no side effects, so `-t` and a failed reload leave nothing behind.
//!
//! ```text
//! master   disk ─▶ recorder ─▶ parse ─▶ apply to structs ─▶ LoadedConfiguration, with the recording
//! worker                recording ─▶ parse ─▶ apply ─▶ LoadedConfiguration, whose engines start on the loops
//! ```

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use conf::diagnostic::first_line;
use conf::outside_hash::{OutsideHash, hash_outside};
use conf::{
    BlockConfs, BlockContext, ConfigurationBuild, ConfigurationTree, Diagnostic, DirectiveNode,
    DiskFiles, FileRecorder, FileSnapshot, FileSource, KnownBlocks, MAIN, NoVariables, PathUse,
    PresentFiles, SourceMap, SystemNeeds, TrackedFiles, TypeMap,
};
use host::engine::{EngineConfiguration, MainSettings};
use host::error_log::{self, LogFiles, Logger};
use http::kept_servers::KeptHttp;

use crate::core_conf::{CoreConf, RowContext};
use crate::foreign_format::recognise_format;
use crate::identity::ProgramIdentity;
use crate::paths::{OwnFolder, ServerPaths};
use crate::service_manager::ServiceStart;
use crate::terminal;

/// What the command line decides, for the life of the process.
pub(crate) struct StartupSettings {
    /// The program's name.
    pub(crate) identity: ProgramIdentity,
    /// The default paths.
    pub(crate) paths: ServerPaths,
    /// The text of `-g`.
    pub(crate) globals: Option<String>,
    /// `-t`.
    pub(crate) testing: bool,
    /// A configuration that is no file: that of `weir serve` or `weir proxy`.
    pub(crate) text: Option<Vec<u8>>,
    /// The arguments, for the master's title in the process list.
    pub(crate) arguments: String,
    /// The program's path and arguments as given, for a binary that replaces this one.
    pub(crate) command: crate::upgrade::CommandLine,
    /// Whether the process runs in the background.
    pub(crate) daemonized: std::sync::atomic::AtomicBool,
    /// What the service manager has said and passed; empty until the server starts.
    pub(crate) service: std::sync::OnceLock<ServiceStart>,
    /// What is changed in the configuration of a copy beside another server.
    pub(crate) private: Option<crate::takeover::PrivateCopy>,
    /// Takes where the blocks of the configuration begin, for `weir explain`.
    pub(crate) block_heads: http::explain::WantedBlockHeads,
}

impl StartupSettings {
    /// Whether this process is a daemon. The master obeys `WINCH` only then, as nginx does:
    /// terminals send it when they are resized.
    pub(crate) fn daemonized(&self) -> bool {
        self.daemonized.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// A valid configuration.
pub(crate) struct LoadedConfiguration {
    /// The main context.
    pub(crate) core: CoreConf,
    /// Its part that engines can see.
    pub(crate) main: MainSettings,
    /// The engines' configurations. A master drops them when everything is open:
    /// [`LoadedConfiguration::forget_engines`].
    pub(crate) engines: Vec<Arc<dyn EngineConfiguration>>,
    /// The directories that engines use, such as caches. They must exist before a worker starts,
    /// which may not be able to create them.
    pub(crate) directories: Vec<PathBuf>,
    /// What a worker needs from the system, for its sandbox.
    pub(crate) needs: SystemNeeds,
    /// The content of every file that was read.
    pub(crate) snapshot: FileSnapshot,
    /// All log files of the configuration.
    pub(crate) files: LogFiles,
    /// The error log of the main context.
    pub(crate) log: Logger,
    /// The server's own directories, which it creates itself.
    pub(crate) own_folders: Vec<OwnFolder>,
    /// The warnings, with the files they refer to.
    pub(crate) messages: LoadMessages,
    /// What the next reading can begin with.
    pub(crate) kept: Option<KeptReading>,
    /// How many servers were taken over from the reading before, and how many there are. `None`: everything was read.
    pub(crate) taken_over: Option<(usize, usize)>,
}

/// What a reading leaves to the next one, so that this need not build again what has not changed.
pub(crate) struct KeptReading {
    /// Stands for everything outside of `http`'s servers.
    outside: OutsideHash,
    http: KeptHttp,
}

/// How large the part outside of servers may be for a master to keep what it has built of it: a `map` may have a million rows.
const MAX_KEPT_BY_MASTER: usize = 1 << 20;

/// How many servers must have been built anew for memory to be looked after: fewer hold little.
const MANY_SERVERS: usize = 32;

impl LoadedConfiguration {
    /// Drops what only a serving process needs, which with thousands of servers is nearly
    /// everything. A worker that is forked later reads the recorded files again, so nothing is
    /// lost, and no page of it is held twice.
    pub(crate) fn forget_engines(&mut self) {
        self.engines.clear();
        self.kept = self
            .kept
            .take()
            .filter(|kept| kept.outside.size <= MAX_KEPT_BY_MASTER);
        if let Some(kept) = &mut self.kept
            && kept.http.forget_locations() >= MANY_SERVERS
        {
            kept.http.move_servers_together();
        }
        self.messages.forget_sources();
        host::process::give_memory_back();
    }

    /// Drops, in a child of the master, what the master's next reading begins with.
    pub(crate) fn abandon_kept(&mut self) {
        if let Some(kept) = self.kept.take() {
            kept.http.abandon();
        }
    }

    /// Whether so little was taken over that the configuration before leaves memory worth giving back.
    pub(crate) fn replaces_much(&self) -> bool {
        let taken_over = self.taken_over;
        taken_over.is_none_or(|(count, all)| all.saturating_sub(count) >= MANY_SERVERS)
    }

    /// Writes the warnings to the error log.
    pub(crate) fn log_warnings(&self) {
        self.messages.log(&self.log);
    }
}

/// An invalid configuration: the messages that say why.
pub(crate) struct LoadFailure(pub(crate) LoadMessages);

impl LoadFailure {
    /// Writes every message to the error log.
    pub(crate) fn log(&self, log: &Logger) {
        self.0.log(log);
    }
}

/// Messages about a configuration.
pub(crate) struct LoadMessages {
    /// In the order in which nginx would have met them.
    diagnostics: Vec<Diagnostic>,
    /// The files that they refer to; `-T` prints them.
    pub(crate) sources: SourceMap,
    /// The parsed directives, kept only if the configuration is tested: `crate::check` looks at
    /// them.
    pub(crate) nodes: Vec<DirectiveNode>,
}

impl LoadMessages {
    /// Takes all, and leaves none.
    pub(crate) fn take(&mut self) -> LoadMessages {
        LoadMessages {
            diagnostics: std::mem::take(&mut self.diagnostics),
            sources: std::mem::take(&mut self.sources),
            nodes: std::mem::take(&mut self.nodes),
        }
    }

    /// Drops all, to free memory. The messages must have been shown and logged.
    pub(crate) fn forget_sources(&mut self) {
        self.diagnostics = Vec::new();
        self.sources = SourceMap::default();
        self.nodes = Vec::new();
    }

    /// The messages. If a file is included several times, each of its messages is kept once.
    fn new(
        mut diagnostics: Vec<Diagnostic>,
        sources: SourceMap,
        nodes: Vec<DirectiveNode>,
    ) -> LoadMessages {
        let mut seen = HashSet::new();
        diagnostics.retain(|diagnostic| match diagnostic.span {
            Some(span) => {
                // By place and text: one line may have several messages, and one file several copies in memory.
                seen.insert((sources.place(span), span.start, diagnostic.message.clone()))
            }
            None => true,
        });
        LoadMessages {
            diagnostics,
            sources,
            nodes,
        }
    }

    /// All messages, in the order in which nginx would have met them.
    pub(crate) fn all(&self) -> &[Diagnostic] {
        &self.diagnostics
    }

    /// The errors, without warnings.
    pub(crate) fn errors(&self) -> Vec<Diagnostic> {
        let fatal = |diagnostic: &&Diagnostic| diagnostic.severity.is_fatal();
        self.diagnostics.iter().filter(fatal).cloned().collect()
    }

    /// Adds messages about a valid configuration.
    pub(crate) fn extend(&mut self, more: Vec<Diagnostic>) {
        self.diagnostics.extend(more);
    }

    /// Prints the messages to standard error, in colour if it is a terminal.
    pub(crate) fn print(&self, program: &str) {
        let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        terminal::report_text(format_args!("{}", self.render(program, colour)));
    }

    /// Prints the errors without files and lines, for users who have never seen the configuration:
    /// that of `weir serve`.
    pub(crate) fn print_without_places(&self, program: &str) {
        for error in self.errors() {
            terminal::report_line(format_args!(
                "{program}: {}",
                base::text::visible_text(&error.message.to_string())
            ));
        }
    }

    /// What [`LoadMessages::print`] prints, without colour.
    pub(crate) fn text(&self, program: &str) -> String {
        self.render(program, false)
    }

    fn render(&self, program: &str, colour: bool) -> String {
        self.diagnostics
            .iter()
            .map(|diagnostic| conf::render_diagnostic(diagnostic, &self.sources, program, colour))
            .collect()
    }

    /// Writes the messages to an error log, one line each.
    pub(crate) fn log(&self, log: &Logger) {
        for diagnostic in &self.diagnostics {
            let name = diagnostic.severity.name();
            let level = error_log::LogLevel::from_word(name.as_bytes())
                .unwrap_or(error_log::LogLevel::Emerg);
            log.log_plain(
                level,
                format_args!("{}", first_line(diagnostic, &self.sources)),
            );
        }
    }
}

/// Reads and builds the configuration, from the disk or from the text that the process was started
/// with.
pub(crate) fn load_from_disk(
    startup: &StartupSettings,
    kept: Option<KeptReading>,
) -> Result<LoadedConfiguration, LoadFailure> {
    let log_files = LogFiles::default();
    match &startup.text {
        Some(text) => {
            let disk = OverlayFiles {
                path: startup.paths.configuration.clone(),
                text: text.clone(),
            };
            load(startup, Box::new(FileRecorder::new(disk)), log_files, kept)
        }
        None => load(
            startup,
            Box::new(FileRecorder::new(DiskFiles)),
            log_files,
            kept,
        ),
    }
}

/// The disk, with one file's content replaced.
struct OverlayFiles {
    path: PathBuf,
    text: Vec<u8>,
}

impl FileSource for OverlayFiles {
    fn read(&mut self, path: &Path) -> std::io::Result<Vec<u8>> {
        // By exact path: an `include` of any other file is read from the disk as usual.
        if path == self.path {
            Ok(self.text.clone())
        } else {
            DiskFiles.read(path)
        }
    }

    fn glob(&mut self, pattern: &Path) -> std::io::Result<Vec<PathBuf>> {
        DiskFiles.glob(pattern)
    }
}

/// Builds the configuration from `files`. The logs that it names are added to `log_files`. Servers that have not changed since
/// the reading that left `kept` are taken over from it.
pub(crate) fn load(
    startup: &StartupSettings,
    files: Box<dyn FileSource>,
    log_files: LogFiles,
    kept: Option<KeptReading>,
) -> Result<LoadedConfiguration, LoadFailure> {
    let mut files: Box<dyn FileSource> = Box::new(TrackedFiles::new(files));
    if let Some(kept) = kept {
        match load_changes(startup, files, kept) {
            ChangedReading::Complete(loaded) => return Ok(*loaded),
            ChangedReading::MustReadAll(given_back) => files = given_back,
        }
    }
    let path = &startup.paths.configuration;
    // Goes on after syntax errors, so that one run reports all of them. nginx stops at the first.
    let (mut tree, errors) = conf::parse_tolerant(path, &mut *files, startup.globals.as_deref());
    if let Some(private) = &startup.private {
        private.rewrite(&mut tree.nodes);
    }
    apply(startup, files, tree, errors, log_files, None).map_err(|failed| failed.1)
}

/// What became of the attempt to read changes only.
enum ChangedReading {
    Complete(Box<LoadedConfiguration>),
    /// More than servers has changed, or there is an error, whose message is worth a complete reading.
    MustReadAll(Box<dyn FileSource>),
}

/// Reads the servers that have changed.
fn load_changes(
    startup: &StartupSettings,
    mut files: Box<dyn FileSource>,
    mut kept: KeptReading,
) -> ChangedReading {
    let path = &startup.paths.configuration;
    let mut present = PresentFiles::default();
    let mut outside = kept.http.outside_files().iter();
    if !outside.all(|used| present.is_current(used, &mut *files)) {
        return ChangedReading::MustReadAll(files);
    }
    let mut blocks = KnownBlocks::new(kept.http.take_sources());
    let globals = startup.globals.as_deref();
    let (tree, errors) = conf::tree::parse_changes(path, &mut *files, globals, Some(&mut blocks));
    if !errors.is_empty() || hash_outside(&tree.nodes) != kept.outside {
        return ChangedReading::MustReadAll(files);
    }
    let count = blocks.found.len();
    for (number, source) in blocks.found {
        kept.http.put_source(number, source);
    }
    // What is taken over refers to log files by this set.
    let log_files = kept.http.log_files().unwrap_or_default();
    let http = Some(kept.http);
    match apply(startup, files, tree, errors, log_files.clone(), http) {
        Ok(mut loaded) => {
            let engines = loaded.engines.iter();
            let all = engines.map(|engine| engine.server_count()).sum();
            loaded.taken_over = Some((count, all));
            // Those that only servers named which are gone.
            log_files.prune_unused();
            ChangedReading::Complete(Box::new(loaded))
        }
        Err((files, _)) => ChangedReading::MustReadAll(files),
    }
}

/// A failure, and the files to try again with.
type FailedReading = (Box<dyn FileSource>, LoadFailure);

/// Applies a tree to structs.
fn apply(
    startup: &StartupSettings,
    files: Box<dyn FileSource>,
    tree: ConfigurationTree,
    errors: Vec<Diagnostic>,
    log_files: LogFiles,
    kept: Option<KeptHttp>,
) -> Result<LoadedConfiguration, FailedReading> {
    let mut build = new_build(startup, files, tree.sources, log_files.clone());
    build.diagnostics = errors;
    build.blocks = tree.blocks;
    let reads_changes = kept.is_some();
    if let Some(kept) = kept {
        build.momentary.insert(kept);
    }
    // Unix sockets and `transparent` are recognised as words, whatever directive they belong to.
    build.needs().read_words(&tree.nodes);
    build.refused = conf::RefusedDirectives::of(&tree.nodes);
    // If the file could not be read, more errors would only hide the reason.
    let was_read = build
        .sources
        .iter()
        .any(|source| source.kind == conf::tree::SourceKind::File);
    let mut confs = BlockConfs::new(vec![vec![&crate::core_conf::DIRECTIVES]]);
    let mut names = NoVariables::default();
    if was_read {
        conf::dispatch(
            &tree.nodes,
            &mut confs,
            None,
            &mut BlockContext::new(&mut build, &mut names, &mut (), MAIN),
        );
    } else if let Some(error) = build.diagnostics.pop() {
        build.report(explain_missing(startup, error));
    }
    explain_format(&mut build);
    build.diagnostics.append(&mut names.errors);
    let groups = confs.get_mut::<CoreConf>().map_or(1, |core| core.groups());
    build
        .diagnostics
        .extend(crate::worker_groups::diagnostics(&tree.nodes, groups));
    let is_complete = build.momentary.get::<KeptHttp>().is_some()
        && !build.must_always_read_all
        && !build.has_errors();
    if reads_changes && !is_complete {
        let messages = LoadMessages::new(Vec::new(), SourceMap::default(), Vec::new());
        return Err((build.files, LoadFailure(messages)));
    }
    let outside = hash_outside(&tree.nodes);
    let nodes = match startup.testing {
        true => tree.nodes,
        false => Vec::new(),
    };
    finish(startup, build, confs, (nodes, outside), log_files)
}

/// The error about the main file, which could not be read, with what to do.
fn explain_missing(startup: &StartupSettings, error: Diagnostic) -> Diagnostic {
    if startup.identity != ProgramIdentity::Weir {
        return error;
    }
    if !startup.paths.is_named {
        return WITHOUT_A_FILE
            .iter()
            .fold(error, |error, line| error.note(*line));
    }
    match &startup.paths.also_tried {
        Some(path) => error.note(format!("{} was tried, too", path.display())),
        None => error,
    }
}

/// Adds to the first error that the file is one of another program, if it looks like that.
fn explain_format(build: &mut ConfigurationBuild) {
    let errors = &mut build.diagnostics;
    let Some(first) = errors.iter_mut().find(|error| error.severity.is_fatal()) else {
        return;
    };
    let main = build.sources.unique_files();
    let format = main.first().and_then(|file| recognise_format(&file.text));
    if let Some(format) = format {
        let text = "Weir reads an nginx.conf (\"weir init\" writes one)";
        first
            .notes
            .push(format!("this looks like {format}; {text}"));
    }
}

/// What was built, unless a line was refused.
fn finish(
    startup: &StartupSettings,
    mut build: ConfigurationBuild,
    mut confs: BlockConfs,
    (nodes, outside): (Vec<DirectiveNode>, OutsideHash),
    log_files: LogFiles,
) -> Result<LoadedConfiguration, FailedReading> {
    // Decided before the messages are moved out of the builder below.
    let failed = build.has_errors();
    // In the order in which nginx would have met them: it stops at the first error, and that one
    // comes first here, too.
    build.sources.sort(&mut build.diagnostics);
    let snapshot = build.files.recorded().cloned().unwrap_or_default();
    let prefix = build.in_prefix(PathUse::Opened, "");
    let needs = build.needs().clone();
    let messages = LoadMessages::new(build.diagnostics, build.sources, nodes);
    match confs.get_mut::<CoreConf>() {
        // All or nothing: a configuration with one invalid line is not used in part.
        Some(core) if !failed => {
            let main = core.main(build.shared.get_or_default::<RowContext>(), prefix);
            let engines = std::mem::take(&mut core.engines);
            let core = core.clone();
            let kept = keep(startup, build.momentary.take(), build.shared, engines.len());
            let kept = kept.map(|http| KeptReading { outside, http });
            let directories = engines.iter().flat_map(|engine| engine.directories());
            Ok(LoadedConfiguration {
                log: core.log.clone(),
                core,
                main,
                directories: directories.collect(),
                engines,
                needs,
                snapshot,
                files: log_files,
                own_folders: startup.paths.own_folders.clone(),
                messages,
                kept,
                taken_over: None,
            })
        }
        Some(_) | None => Err((build.files, LoadFailure(messages))),
    }
}

/// What the next reading can begin with, if this process ever reads again and there is nothing besides `http` that shares
/// registries with it.
fn keep(
    startup: &StartupSettings,
    http: Option<KeptHttp>,
    shared: TypeMap,
    engines: usize,
) -> Option<KeptHttp> {
    let mut http = http.filter(|_| !startup.testing && engines == 1)?;
    if http.is_complete_reading() {
        http.shared = shared;
    }
    Some(http)
}

/// What else can be started when there is no configuration yet.
const WITHOUT_A_FILE: [&str; 3] = [
    "\"weir serve DIR\" serves a directory",
    "\"weir proxy URL\" is a cache in front of a server",
    "\"weir -c FILE\" starts with a configuration, yours or one from examples/",
];

/// What building needs besides the files: prefixes, default paths, tables, and the values that
/// modules share.
fn new_build(
    startup: &StartupSettings,
    files: Box<dyn FileSource>,
    sources: SourceMap,
    log_files: LogFiles,
) -> ConfigurationBuild {
    let paths = &startup.paths;
    // nginx's conf-prefix, to which `include` and some other directives are relative.
    let conf_prefix = paths
        .configuration
        .parent()
        .unwrap_or(Path::new("/"))
        .to_path_buf();
    let mut build = ConfigurationBuild::new(paths.prefix.clone(), conf_prefix, files, sources);
    build.temporary.clone_from(&paths.temporary);
    build.access_log.clone_from(&paths.access_log);
    build.program = startup.identity.program().to_owned();
    build.tables = crate::reference::tables();
    build.shared.insert(startup.block_heads.clone());
    build.shared.insert(log_files);
    build.shared.insert(RowContext {
        program: startup.identity.program(),
        version: startup.identity.token(),
        testing: startup.testing,
        pid: paths.pid.clone(),
        error_log: paths.error_log.clone(),
    });
    build
}

/// The arguments in one line, for the process title.
pub(crate) fn joined<'a>(arguments: impl IntoIterator<Item = &'a OsStr>) -> String {
    arguments
        .into_iter()
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::arguments::NginxOptions;

    /// What a command line decides with this configuration. The user is given, since not every system that runs tests has
    /// the default one.
    pub(crate) fn startup_of(text: &str) -> (StartupSettings, FileSnapshot) {
        let options = NginxOptions {
            prefix: Some("/prefix".into()),
            globals: Some("user root;".to_owned()),
            ..NginxOptions::default()
        };
        let ground = crate::paths::SystemProbe {
            exists: &|_| false,
            writable: &|_| true,
            variable: &|_| None,
            user: 0,
            replaced: None,
        };
        let paths = ServerPaths::find(ProgramIdentity::Weir, &options, &ground);
        let mut files = FileSnapshot::default();
        files.insert(&paths.configuration, text);
        let startup = StartupSettings {
            identity: ProgramIdentity::Weir,
            paths,
            globals: options.globals,
            testing: true,
            text: None,
            arguments: String::new(),
            command: Default::default(),
            daemonized: false.into(),
            service: Default::default(),
            private: None,
            block_heads: Default::default(),
        };
        (startup, files)
    }

    /// Builds a configuration from a text.
    pub(crate) fn load_text(text: &str) -> Result<LoadedConfiguration, Vec<String>> {
        let (startup, files) = startup_of(text);
        load(&startup, Box::new(files), LogFiles::default(), None).map_err(
            |LoadFailure(messages)| {
                messages
                    .diagnostics
                    .iter()
                    .filter(|diagnostic| diagnostic.severity.is_fatal())
                    .map(|diagnostic| first_line(diagnostic, &messages.sources))
                    .collect()
            },
        )
    }

    fn errors(text: &str) -> Vec<String> {
        load_text(text).err().expect("refused")
    }

    #[test]
    fn an_empty_configuration_has_nginx_s_defaults() {
        let loaded = load_text("events {}").expect("valid");
        assert!(loaded.core.daemon && loaded.core.master_process);
        assert_eq!(loaded.main.worker_processes, 1);
        assert_eq!(loaded.main.worker_connections, 512);
        assert_eq!(loaded.core.pid, Path::new("/prefix/logs/nginx.pid"));
        assert_eq!(
            loaded.files.all_paths(),
            [PathBuf::from("/prefix/logs/error.log")]
        );
        let pool = &loaded.main.thread_pools[0];
        assert_eq!(
            (pool.name.as_str(), pool.threads, pool.max_queue),
            ("default", 32, 65536)
        );
    }

    #[test]
    fn values_are_read() {
        let text = "worker_processes 3; events { worker_connections 7; multi_accept on; }
            pid x.pid; daemon off; worker_shutdown_timeout 1500ms; error_log syslog:server=127.0.0.1;
            thread_pool disk threads=2; env A=b; worker_priority -5; worker_rlimit_core 10m;";
        let loaded = load_text(text).expect("valid");
        assert_eq!(
            (loaded.main.worker_processes, loaded.main.worker_connections),
            (3, 7)
        );
        assert!(loaded.main.multi_accept && !loaded.core.daemon);
        assert_eq!(loaded.core.pid, Path::new("/prefix/x.pid"));
        assert_eq!(
            loaded.main.shutdown_timeout,
            std::time::Duration::from_millis(1500)
        );
        assert_eq!(loaded.core.core_size, Some(10 << 20));
        assert_eq!(loaded.core.priority, -5);
        assert!(
            loaded
                .core
                .worker_environment()
                .contains(&("A".into(), "b".into()))
        );
        assert_eq!(
            loaded.files.all_paths().len(),
            1,
            "a log that is no file needs the default one beside it"
        );
        assert_eq!(loaded.main.thread_pools.len(), 2);
    }

    #[test]
    fn every_error_is_reported_in_nginx_s_words() {
        assert_eq!(errors(""), ["no \"events\" section in configuration"]);
        let text = "worker_processes 0;\nworker_processes 1;\nthread_pool a threads=1; thread_pool a threads=1;
thread_pool b;\nload_module modules/x.so;\nevents { use kqueue; }\nerror_log x loud;";
        let expected = [
            "\"worker_processes\" directive invalid value",
            "\"worker_processes\" directive is duplicate",
            "duplicate thread pool \"a\"",
            "\"threads\" parameter is missing in thread pool \"b\"",
            "module \"x\" is not available",
            "invalid event type \"kqueue\"",
            "invalid log level \"loud\"",
        ];
        let found = errors(text);
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found} instead of {expected}");
        }
    }

    #[test]
    fn what_a_process_can_not_change_needs_a_new_one() {
        let core = |text: &str| load_text(text).expect("valid").core;
        let one = core("events {} pid a; error_log /a;");
        assert!(core("events {} pid b; error_log /b info;").same_process(&one));
        assert!(core("events {} worker_processes 2;").same_process(&one));
        assert!(!core("events {} env X=1;").same_process(&one));
    }
}

//! A case as data: what it needs, what runs behind the server, the server's configuration, and the client.
//!
//! In all texts these are filled in: `%%PORT%%` and `%%PORT2%%`, on which the server listens; `%%APP%%` and `%%APP2%%`,
//! ports for applications; `%%DIR%%`, the folder of the case; `%%USER%%`; `%%PYTHON%%`, `%%SITE%%`, `%%NODE%%`, `%%GO%%`,
//! where packages were installed to.

use std::time::Duration;

use crate::Options;
use crate::needs::Need;
use crate::stage::{Server, Stage};

/// How long a preparation or a client may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// An application, its clients, and what stands between them.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) needs: Vec<Need>,
    /// Files of the case's folder, and what is in them.
    pub(crate) files: Vec<(&'static str, &'static str)>,
    /// Commands that are run to their end before anything is started.
    pub(crate) prepare: Vec<&'static str>,
    /// Commands that go on, and the port or the socket at which they listen then.
    pub(crate) applications: Vec<(&'static str, &'static str)>,
    /// The whole configuration but for what says where it stands. Empty for a client that is a script for `box.sh`, which
    /// starts the server itself.
    pub(crate) configuration: &'static str,
    /// Each line that it prints is something that was seen.
    pub(crate) client: &'static str,
    /// Lines that differ on purpose, by their beginning, and why.
    pub(crate) differs: Vec<(&'static str, &'static str)>,
}

impl Case {
    /// A case without anything: the base of all others.
    pub(crate) fn new(name: &'static str, what: &'static str) -> Case {
        Case {
            name,
            what,
            needs: Vec::new(),
            files: Vec::new(),
            prepare: Vec::new(),
            applications: Vec::new(),
            configuration: "",
            client: "",
            differs: Vec::new(),
        }
    }

    /// What its client saw through a server, a line for each thing. The error is why it saw nothing.
    pub(crate) fn run(&self, server: &Server, options: &Options) -> Result<Vec<String>, String> {
        let mut stage = Stage::set(self.name, server.name, options.keep)?;
        for (name, content) in &self.files {
            stage.write(name, content)?;
        }
        for command in &self.prepare {
            stage.output(command, PATIENCE)?;
        }
        for (command, place) in &self.applications {
            stage.start(command, place)?;
        }
        let client = match self.configuration {
            "" => format!("sh box.sh {} . {}", server.binary.display(), self.client),
            configuration => {
                stage.serve(server, configuration)?;
                self.client.to_owned()
            }
        };
        let mut seen = stage.client(&client, PATIENCE)?;
        // What the applications saw is worth as much as what the client did.
        let application = stage.read("seen");
        let lines = application.lines().map(|line| stage.plain(line));
        seen.extend(lines.map(|line| format!("application: {line}")));
        stage.end()?;
        Ok(seen)
    }
}

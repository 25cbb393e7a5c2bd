//! The directives of the main error log: where it goes, and in which format.
//!
//! Blocks of the engines may have logs of their own (`error_log` in `http` and below); their format is the one that stands
//! here.

use conf::{Diagnostic, DirectiveLine};
use host::error_log::{ErrorLogTarget, LogFiles};

use crate::core_conf::{CoreConf, words};

/// `error_log`. Several lines write several logs, so each is added to those before it.
pub(crate) fn set_log(core: &mut CoreConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let target = ErrorLogTarget::parse(
        &words(line),
        &line.level.build.in_prefix(conf::PathUse::Opened, ""),
    )
    .map_err(|error| line.error(error))?;
    core.log = core.log.with_target(target, line.shared::<LogFiles>());
    Ok(())
}

/// `error_log_format`. It is of the whole server: a file that two blocks write must not have two formats.
pub(crate) fn set_format(core: &mut CoreConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    core.log_is_json = match line.arg(0).text.as_slice() {
        b"json" => true,
        b"text" => false,
        _ => return Err(line.invalid_value(0)),
    };
    Ok(())
}

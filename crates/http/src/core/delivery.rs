//! Settings of a location that control how files are read and how responses are sent.

use std::time::Duration;

use bstr::ByteSlice;
use conf::directive_contexts::{HTTP_SERVER_LOCATION, LOCATION_IF};
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, Expression, RepeatRule, Setter,
};

/// The values of the directives below, for one location.
#[derive(Clone, Debug, Default)]
pub struct DeliveryConf {
    /// Whether larger files are sent with `sendfile`.
    pub sendfile: bool,
    /// The maximum number of bytes of a file sent per iteration of the event loop; 0: no limit.
    pub sendfile_max_chunk: u64,
    /// The pool that reads files which are not in memory.
    pub aio: Aio,
    /// Accepted without effect: writing is always done by a pool.
    pub aio_write: bool,
    /// The number of bytes that the kernel reads ahead.
    pub read_ahead: u64,
    /// The size from which on files are read past the page cache.
    pub directio: Directio,
    /// The alignment of reads past the page cache, in bytes.
    pub directio_alignment: u64,
    /// The number of buffers for files that are read.
    pub output_buffers: u64,
    /// The size of each of these buffers, in bytes.
    pub output_buffer_size: u64,
    /// The maximum size of an HTTP/2 DATA frame, in bytes.
    pub http2_chunk_size: u32,
    /// The number of bytes of output that are gathered before they are sent.
    pub postpone_output: u64,
    /// `TCP_CORK`: the head and the beginning of a file leave in full packets.
    pub tcp_nopush: bool,
    /// `TCP_NODELAY`: small packets are sent at once.
    pub tcp_nodelay: bool,
    /// The time for which a client may accept nothing.
    pub send_timeout: Duration,
    /// Accepted without effect: Linux has no such option.
    pub send_lowat: u64,
    /// The rate of a response in bytes per second; evaluates to a size.
    pub limit_rate: Expression,
    /// The number of bytes before the limit applies; evaluates to a size.
    pub limit_rate_after: Expression,
    /// The symbolic links that are refused.
    pub symlinks: DisableSymlinks,
    /// The part of the path that is not checked for links.
    pub symlinks_from: Option<Expression>,
    /// The cache of open files.
    pub open_file_cache: Option<OpenFileCache>,
    /// The age at which an entry is checked again.
    pub open_file_cache_valid: Duration,
    /// The number of uses within `inactive` that keeps a file open.
    pub open_file_cache_min_uses: i64,
    /// Whether failed lookups are cached too.
    pub open_file_cache_errors: bool,
    /// Accepted without effect: it is about an event mechanism that Linux lacks.
    pub open_file_cache_events: bool,
}

/// The pool that reads what is not in memory.
#[derive(Clone, Debug, Default)]
pub enum Aio {
    /// The pool `default`.
    #[default]
    Default,
    /// The pool with this name, which may contain variables.
    Pool(Expression),
}

/// The size from which on files are read past the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Directio {
    /// Never.
    #[default]
    Off,
    /// For files of this size or larger.
    From(u64),
}

/// The symbolic links that are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DisableSymlinks {
    /// None.
    #[default]
    Allow,
    /// All.
    Refuse,
    /// Those with another owner than their target.
    RefuseUnlessOwner,
    /// Those that lead out of a directory.
    RefuseOutside,
}

/// The limits of the cache of open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFileCache {
    /// The maximum number of entries.
    pub max: usize,
    /// The time without use after which an entry is removed.
    pub inactive: Duration,
}

/// The directives.
pub static DIRECTIVES: DirectiveTable<DeliveryConf> = DirectiveTable::new(&[
    Directive {
        name: "sendfile",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "Whether larger files are sent with `sendfile`, which copies nothing through this process.",
        set: Setter::Flag(|c| &mut c.sendfile),
    },
    Directive {
        name: "sendfile_max_chunk",
        syntax: "size",
        default: Some("2m"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The maximum amount of one file to send per iteration of the event loop, so that a fast client cannot \
              monopolise it.",
        set: Setter::Size(|c| &mut c.sendfile_max_chunk),
    },
    Directive {
        name: "aio",
        syntax: "on | off | threads[=pool]",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The thread pool that reads data not in memory. Weir never blocks on the disk: `off` and `on` both mean \
              the pool `default`.",
        set: Setter::Custom(Arity::exactly(1), RepeatRule::Once, aio),
    },
    Directive {
        name: "aio_write",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted; files are always written by a thread pool.",
        set: Setter::Flag(|c| &mut c.aio_write),
    },
    Directive {
        name: "read_ahead",
        syntax: "size",
        default: Some("0"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "How far the kernel reads ahead in a file that is read sequentially.",
        set: Setter::Size(|c| &mut c.read_ahead),
    },
    Directive {
        name: "directio",
        syntax: "size | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Reads files of this size or larger with `O_DIRECT`, bypassing the page cache.",
        set: Setter::Custom(Arity::exactly(1), RepeatRule::Once, directio),
    },
    Directive {
        name: "directio_alignment",
        syntax: "size",
        default: Some("512"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The alignment of `O_DIRECT` reads.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            c.directio_alignment = line.offset(0)?.unsigned_abs();
            Ok(())
        }),
    },
    Directive {
        name: "output_buffers",
        syntax: "number size",
        default: Some("2 32k"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The number and size of the buffers for files that are read rather than sent with `sendfile`.",
        set: Setter::Custom(Arity::exactly(2), RepeatRule::Once, output_buffers),
    },
    Directive {
        name: "http2_chunk_size",
        syntax: "size",
        default: Some("8k"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The maximum size of an HTTP/2 DATA frame. Larger frames delay the other responses on the connection.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, http2_chunk_size),
    },
    Directive {
        name: "http2_push",
        syntax: "uri | off",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Obsolete: has no effect, and causes a warning. Browsers no longer support server push.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Many, obsolete),
    },
    Directive {
        name: "http2_push_preload",
        syntax: "on | off",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Obsolete: has no effect, and causes a warning. Browsers no longer support server push.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Many, obsolete),
    },
    Directive {
        name: "postpone_output",
        syntax: "size",
        default: Some("1460"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The minimum amount of output to gather before sending, as long as more is to come.",
        set: Setter::Size(|c| &mut c.postpone_output),
    },
    Directive {
        name: "tcp_nopush",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to send the response header and the beginning of a file in full packets (`TCP_CORK`).",
        set: Setter::Flag(|c| &mut c.tcp_nopush),
    },
    Directive {
        name: "tcp_nodelay",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to send small packets immediately on keep-alive connections (`TCP_NODELAY`).",
        set: Setter::Flag(|c| &mut c.tcp_nodelay),
    },
    Directive {
        name: "send_timeout",
        syntax: "time",
        default: Some("60s"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The timeout between two successful writes to the client. If the client accepts nothing within this time, \
              the connection is closed.",
        set: Setter::Millis(|c| &mut c.send_timeout),
    },
    Directive {
        name: "send_lowat",
        syntax: "size",
        default: Some("0"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted; Linux has no such option.",
        set: Setter::Size(|c| &mut c.send_lowat),
    },
    Directive {
        name: "limit_rate",
        syntax: "rate",
        default: Some("0"),
        contexts: HTTP_SERVER_LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "The rate limit of a response, in bytes per second; 0 means no limit.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            size_expression(line).map(|rate| c.limit_rate = rate)
        }),
    },
    Directive {
        name: "limit_rate_after",
        syntax: "size",
        default: Some("0"),
        contexts: HTTP_SERVER_LOCATION.or(LOCATION_IF),
        since: "0.1",
        doc: "The amount of a response to send before `limit_rate` applies.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |c, line| {
            size_expression(line).map(|size| c.limit_rate_after = size)
        }),
    },
    Directive {
        name: "disable_symlinks",
        syntax: "off | on | if_not_owner | outside [from=part]",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Refuses files whose path contains symbolic links; with `if_not_owner`, links whose owner differs from the \
              owner of the target; with `outside` (Weir's own), links that lead out of the directory that `from` names \
              (absolute links always do). The part of the path that `from` names is not checked.",
        set: Setter::Custom(Arity::between(1, 2), RepeatRule::Once, disable_symlinks),
    },
    Directive {
        name: "open_file_cache",
        syntax: "off | max=N [inactive=time]",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Caches open files, their metadata, and failed lookups.",
        set: Setter::Custom(Arity::between(1, 2), RepeatRule::Once, open_file_cache),
    },
    Directive {
        name: "open_file_cache_valid",
        syntax: "time",
        default: Some("60s"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "How often a cached entry is revalidated.",
        set: Setter::Millis(|c| &mut c.open_file_cache_valid),
    },
    Directive {
        name: "open_file_cache_min_uses",
        syntax: "number",
        default: Some("1"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The number of uses within `inactive` that keeps a file open.",
        set: Setter::Number(|c| &mut c.open_file_cache_min_uses, 1, i64::MAX),
    },
    Directive {
        name: "open_file_cache_errors",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Whether to cache failed lookups as well.",
        set: Setter::Flag(|c| &mut c.open_file_cache_errors),
    },
    Directive {
        name: "open_file_cache_events",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Accepted; has no effect on Linux.",
        set: Setter::Flag(|c| &mut c.open_file_cache_events),
    },
]);

fn aio(conf: &mut DeliveryConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let text = line.arg(0).text.clone();
    conf.aio = match text.as_slice() {
        // Reading is never done on a loop's thread, so all of nginx's values mean the same pool.
        b"on" | b"off" | b"threads" => Aio::Default,
        other => match other.strip_prefix(b"threads=") {
            Some(name) if !name.is_empty() => {
                let name = line.expression_of(line.arg(0), name)?;
                let span = line.node.span;
                // A constant name can be checked now. A name with variables is looked up per request.
                if let Some(constant) = name.constant() {
                    line.lasting::<super::blocks::WantedPools>()
                        .add_pool(constant, span);
                }
                Aio::Pool(name)
            }
            _ => return Err(line.error_at(0, "invalid value".to_string())),
        },
    };
    Ok(())
}

/// A size, or an expression that evaluates to one.
fn size_expression(line: &mut DirectiveLine) -> Result<Expression, Diagnostic> {
    let expression = line.expression(0)?;
    // A constant is checked now, so that a mistake is found before the first request.
    if expression.constant().is_some() {
        line.size(0)?;
    }
    Ok(expression)
}

fn directio(conf: &mut DeliveryConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.directio = match line.arg(0).text.as_slice() {
        b"off" => Directio::Off,
        _ => Directio::From(line.size(0)?),
    };
    Ok(())
}

fn http2_chunk_size(conf: &mut DeliveryConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let size = line.size(0)?;
    // Empty frames would carry no response to its end.
    if size == 0 {
        return Err(line.error("the http2 chunk size cannot be zero"));
    }
    // A frame's length has 24 bits (RFC 9113, section 4.1).
    let most = u64::from(proto::h2::frame::MAX_FRAME_SIZE_MAX);
    conf.http2_chunk_size = size.min(most) as u32;
    Ok(())
}

/// The setter of directives that nginx has removed: a warning, as there.
fn obsolete(_: &mut DeliveryConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    super::http2::warn_of_obsolete(line);
    Ok(())
}

fn output_buffers(conf: &mut DeliveryConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let buffers = line.buffers()?;
    conf.output_buffers = buffers.count.into();
    conf.output_buffer_size = buffers.size;
    Ok(())
}

fn disable_symlinks(conf: &mut DeliveryConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    for index in 0..line.args().len() {
        let text = line.arg(index).text.clone();
        match text.as_slice() {
            b"off" => conf.symlinks = DisableSymlinks::Allow,
            b"on" => conf.symlinks = DisableSymlinks::Refuse,
            b"outside" => conf.symlinks = DisableSymlinks::RefuseOutside,
            b"if_not_owner" => conf.symlinks = DisableSymlinks::RefuseUnlessOwner,
            other => match other.strip_prefix(b"from=") {
                Some(from) if !from.is_empty() => {
                    conf.symlinks_from = Some(line.expression_of(line.arg(index), from)?);
                }
                _ => return Err(line.error_at(index, format!("invalid parameter \"{text}\""))),
            },
        }
    }
    // Without `from`, there is no directory that a link could lead out of.
    if conf.symlinks == DisableSymlinks::RefuseOutside && conf.symlinks_from.is_none() {
        let error = line.error("\"outside\" needs \"from\"");
        return Err(error.note("such as disable_symlinks outside from=$document_root;"));
    }
    // As in nginx, `off` ignores `from`.
    if conf.symlinks == DisableSymlinks::Allow {
        conf.symlinks_from = None;
    }
    Ok(())
}

/// The default of `inactive`, which is nginx's.
const INACTIVE_DEFAULT: Duration = Duration::from_secs(60);

fn open_file_cache(conf: &mut DeliveryConf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let mut cache = OpenFileCache {
        max: 0,
        inactive: INACTIVE_DEFAULT,
    };
    for index in 0..line.args().len() {
        let text = line.arg(index).text.clone();
        let invalid = |line: &DirectiveLine| {
            line.error_at(
                index,
                format!("invalid \"open_file_cache\" parameter \"{text}\""),
            )
        };
        if text == "off" {
            conf.open_file_cache = None;
            return Ok(());
        } else if let Some(number) = text.strip_prefix(b"max=") {
            cache.max = number
                .to_str()
                .ok()
                .and_then(|n| n.parse().ok())
                .ok_or_else(|| invalid(line))?;
        } else if let Some(time) = text.strip_prefix(b"inactive=") {
            let time = base::units::parse_seconds(time).ok_or_else(|| invalid(line))?;
            cache.inactive = time;
        } else {
            return Err(invalid(line));
        }
    }
    // A cache without a bound would keep all files of a site open.
    if cache.max == 0 {
        return Err(line.error("\"open_file_cache\" must have the \"max\" parameter".to_string()));
    }
    conf.open_file_cache = Some(cache);
    Ok(())
}

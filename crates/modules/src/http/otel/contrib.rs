//! `opentelemetry_config`: the TOML file of OpenTelemetry's contrib module, which ingress-nginx writes; and its samplers.

use std::time::Duration;

use bstr::ByteSlice;
use conf::{Diagnostic, DirectiveLine};
use toml::{Table, Value};

use super::context::TraceId;
use super::settings::{
    ExporterDraft, MAX_BATCH_COUNT, MAX_BATCH_SIZE, OtlpProtocol, read_certificates,
};

/// Which traces that begin here are recorded, and whether those of others are judged by their parents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TraceSampler {
    pub(super) choice: SamplerChoice,
    pub(super) is_parent_based: bool,
}

/// Which traces are recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SamplerChoice {
    All,
    None,
    /// This share of them.
    Ratio(f64),
}

impl Default for TraceSampler {
    fn default() -> TraceSampler {
        TraceSampler {
            choice: SamplerChoice::All,
            is_parent_based: true,
        }
    }
}

/// The names of `opentelemetry_traces_sampler`, without `parentbased_`.
const SAMPLERS: [&str; 3] = ["always_on", "always_off", "traceidratio"];

impl TraceSampler {
    /// Whether a trace is recorded. `parent`: what the request came with says so.
    pub(super) fn samples(&self, trace: &TraceId, parent: Option<bool>) -> bool {
        match parent {
            Some(sampled) if self.is_parent_based => sampled,
            _ => match self.choice {
                SamplerChoice::All => true,
                SamplerChoice::None => false,
                SamplerChoice::Ratio(ratio) => is_chosen(trace, ratio),
            },
        }
    }

    /// Takes a name of `opentelemetry_traces_sampler`; the ratio stays.
    pub(super) fn set_name(&mut self, name: &[u8], ratio: f64) -> Option<()> {
        let (own, is_parent_based) = match name.strip_prefix(b"parentbased_") {
            Some(own) => (own, true),
            None => (name, false),
        };
        self.is_parent_based = is_parent_based;
        self.choice = match SAMPLERS.iter().position(|known| known.as_bytes() == own)? {
            0 => SamplerChoice::All,
            1 => SamplerChoice::None,
            _ => SamplerChoice::Ratio(ratio),
        };
        Some(())
    }
}

/// Whether a trace is among a share of all. The last 56 bits count, which are random in every trace (W3C Trace Context 2,
/// section 3.2.2.3), so that all servers with the same ratio choose the same traces.
fn is_chosen(trace: &TraceId, ratio: f64) -> bool {
    let mut random = [0; 8];
    random[1..].copy_from_slice(&trace[9..]);
    let threshold = (1.0 - ratio.clamp(0.0, 1.0)) * (1_u64 << 56) as f64;
    u64::from_be_bytes(random) >= threshold as u64
}

/// What the file says.
#[derive(Clone, Debug)]
pub(super) struct ContribConfig {
    pub(super) exporter: ExporterDraft,
    pub(super) sampler: Option<TraceSampler>,
    pub(super) service: Option<String>,
}

/// Reads the file of `opentelemetry_config`.
pub(super) fn read_config(line: &mut DirectiveLine) -> Result<ContribConfig, Diagnostic> {
    let path = line.path(conf::PathUse::Opened, line.arg(0));
    let text = line.files().read(&path).map_err(|error| {
        let why = base::text::errno_text(&error);
        line.error_at(0, format!("open() \"{}\" failed {why}", path.display()))
    })?;
    let refused = |why: String| line.error_at(0, format!("{why} in \"{}\"", path.display()));
    let text = text
        .to_str()
        .map_err(|_| refused("invalid UTF-8".to_owned()))?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let before = error
            .span()
            .map_or("", |span| &text[..span.start.min(text.len())]);
        let number = before.matches('\n').count() + 1;
        refused(format!("{} in line {number}", error.message()))
    })?;
    let (mut config, certificate) = parse_config(&table).map_err(refused)?;
    if let Some(certificate) = certificate {
        let path = line
            .level
            .build
            .in_conf_prefix(conf::PathUse::Opened, certificate);
        let read = read_certificates(line, &path);
        config.exporter.trusted = Some(read.map_err(|why| line.error_at(0, why))?);
    }
    Ok(config)
}

/// The settings, and the file of certificates.
fn parse_config(root: &Table) -> Result<(ContribConfig, Option<String>), String> {
    match text_at(root, "exporter")? {
        Some("otlp") => {}
        Some(other) => {
            return Err(format!(
                "unsupported exporter \"{other}\": only \"otlp\" is, which Jaeger and Zipkin's successors take as well"
            ));
        }
        None => return Err("\"exporter\" is missing".to_owned()),
    }
    let otlp = table_at(table_at(Some(root), "exporters"), "otlp");
    let host = otlp.map_or(Ok(None), |table| text_at(table, "host"))?;
    let port = otlp.map_or(Ok(None), |table| number_at(table, "port"))?;
    let (Some(host), Some(port)) = (host, port) else {
        return Err("\"host\" or \"port\" is missing in [exporters.otlp]: variables of the environment are not read".to_owned());
    };
    let is_secure = otlp
        .map_or(Ok(None), |table| flag_at(table, "use_ssl"))?
        .unwrap_or(false);
    let certificate = otlp.map_or(Ok(None), |table| text_at(table, "ssl_cert_path"))?;
    let scheme = if is_secure { "https://" } else { "http://" };
    let mut exporter = ExporterDraft {
        endpoint: format!("{scheme}{host}:{port}").into(),
        protocol: Some(OtlpProtocol::Grpc),
        ..ExporterDraft::default()
    };
    if let Some(batch) = table_at(table_at(Some(root), "processors"), "batch") {
        let delay = number_at(batch, "schedule_delay_millis")?;
        exporter.set_queue(
            number_at(batch, "max_queue_size")?,
            delay,
            number_at(batch, "max_export_batch_size")?,
        );
    }
    let config = ContribConfig {
        exporter,
        sampler: sampler_of(root)?,
        service: table_at(Some(root), "service")
            .map_or(Ok(None), |table| text_at(table, "name"))?
            .map(str::to_owned),
    };
    Ok((config, certificate.filter(|_| is_secure).map(str::to_owned)))
}

impl ExporterDraft {
    /// Takes what the contrib module says of its queue: the number of spans, the delay in milliseconds, the size of a batch.
    pub(super) fn set_queue(
        &mut self,
        spans: Option<i64>,
        delay_ms: Option<i64>,
        batch: Option<i64>,
    ) {
        if let Some(delay) = delay_ms {
            self.interval = Duration::from_millis(u64::try_from(delay).unwrap_or(0).max(1));
        }
        if let Some(size) = batch {
            self.batch_size = usize::try_from(size.clamp(1, MAX_BATCH_SIZE)).unwrap_or(1);
        }
        if let Some(spans) = spans {
            let batches = usize::try_from(spans)
                .unwrap_or(1)
                .div_ceil(self.batch_size);
            self.batch_count = batches.clamp(1, MAX_BATCH_COUNT as usize);
        }
    }
}

fn sampler_of(root: &Table) -> Result<Option<TraceSampler>, String> {
    let Some(table) = table_at(Some(root), "sampler") else {
        return Ok(None);
    };
    let ratio = match table.get("ratio") {
        None => None,
        Some(Value::Float(ratio)) => Some(*ratio),
        Some(Value::Integer(ratio)) => Some(*ratio as f64),
        Some(_) => return Err("\"ratio\" is not a number".to_owned()),
    };
    let choice = match text_at(table, "name")? {
        None | Some("AlwaysOn") => SamplerChoice::All,
        Some("AlwaysOff") => SamplerChoice::None,
        Some("TraceIdRatioBased") => {
            let ratio = ratio.ok_or("TraceIdRatioBased requires a \"ratio\"")?;
            SamplerChoice::Ratio(ratio)
        }
        Some(other) => return Err(format!("unsupported sampler \"{other}\"")),
    };
    Ok(Some(TraceSampler {
        choice,
        is_parent_based: flag_at(table, "parent_based")?.unwrap_or(false),
    }))
}

fn table_at<'a>(table: Option<&'a Table>, key: &str) -> Option<&'a Table> {
    table?.get(key)?.as_table()
}

fn text_at<'a>(table: &'a Table, key: &str) -> Result<Option<&'a str>, String> {
    let value = table.get(key);
    value
        .map(|value| {
            value
                .as_str()
                .ok_or_else(|| format!("\"{key}\" is not a string"))
        })
        .transpose()
}

fn number_at(table: &Table, key: &str) -> Result<Option<i64>, String> {
    let value = table.get(key);
    value
        .map(|value| {
            value
                .as_integer()
                .ok_or_else(|| format!("\"{key}\" is not a number"))
        })
        .transpose()
}

fn flag_at(table: &Table, key: &str) -> Result<Option<bool>, String> {
    let value = table.get(key);
    value
        .map(|value| {
            value
                .as_bool()
                .ok_or_else(|| format!("\"{key}\" is not true or false"))
        })
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_chooses_that_share_and_the_parent_decides_for_its_children() {
        let ratio = TraceSampler {
            choice: SamplerChoice::Ratio(0.25),
            is_parent_based: true,
        };
        let traces = (0..=255).map(|byte| {
            let mut trace = [7; 16];
            trace[9] = byte;
            trace
        });
        let chosen = traces.filter(|trace| ratio.samples(trace, None)).count();
        assert_eq!(chosen, 64);
        assert!(ratio.samples(&[0; 16], Some(true)));
        assert!(!ratio.samples(&[255; 16], Some(false)));
        for (ratio, expected) in [(0.0, 0), (1.0, 256), (7.0, 256)] {
            let all = (0..=255).filter(|byte| is_chosen(&[*byte; 16], ratio));
            assert_eq!(all.count(), expected, "{ratio}");
        }
    }

    #[test]
    fn the_file_of_the_ingress_controller_is_read() {
        let text = "exporter = \"otlp\"\nprocessor = \"batch\"\n[exporters.otlp]\nhost = \"otel\"\nport = 4317\n\
                    [processors.batch]\nmax_queue_size = 2048\nschedule_delay_millis = 5000\nmax_export_batch_size = 512\n\
                    [service]\nname = \"shop\"\n[sampler]\nname = \"TraceIdRatioBased\"\nratio = 0.01\nparent_based = true\n";
        let table: Table = text.parse().expect("it is TOML");
        let (config, certificate) = parse_config(&table).unwrap_or_else(|why| panic!("{why}"));
        let exporter = &config.exporter;
        assert_eq!(exporter.endpoint, "http://otel:4317");
        assert_eq!((exporter.batch_size, exporter.batch_count), (512, 4));
        assert_eq!(config.service.as_deref(), Some("shop"));
        assert_eq!(
            config.sampler,
            Some(TraceSampler {
                choice: SamplerChoice::Ratio(0.01),
                is_parent_based: true
            })
        );
        assert_eq!(certificate, None);
    }

    #[test]
    fn what_is_missing_or_unknown_is_said() {
        for (text, part) in [
            ("", "\"exporter\" is missing"),
            ("exporter = \"jaeger\"", "jaeger"),
            ("exporter = 1", "not a string"),
            ("exporter = \"otlp\"", "[exporters.otlp]"),
        ] {
            let table: Table = text.parse().expect("it is TOML");
            let why = parse_config(&table).map(drop).expect_err(text);
            assert!(why.contains(part), "{why}");
        }
    }
}

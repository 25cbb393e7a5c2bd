//! Metrics as text: OpenMetrics 1.0, and the text format of Prometheus (0.0.4), which differ in little.
//!
//! ```text
//!   # TYPE weir_http_responses counter         text: the name has _total here, too
//!   # HELP weir_http_responses Responses …
//!   weir_http_responses_total{server="shop",class="2xx"} 17
//!   …                                          every sample of the family, and nothing else
//!   # EOF                                      OpenMetrics only: without it a scrape counts as cut off
//! ```
//!
//! Numbers are written as they are, without a float in between: counters stay exact above 2^53, and a thousand servers
//! are a hundred thousand lines, for each of which the conversion would be most of the cost. For the same reason the
//! bounds of histograms are text already, and the labels of a histogram are escaped once for all of its lines.

use base::text::{write_number, write_padded};
use net::metrics::{
    HistogramTotals, MetricFamily, MetricKind, MetricLabel, MetricSink, MetricValue,
};

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpositionFormat {
    /// What Prometheus has always read.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl ExpositionFormat {
    /// The format for an `Accept` field: OpenMetrics for those who name it. Prometheus names both, and prefers it.
    pub(super) fn accepted_by(accept: &[u8]) -> ExpositionFormat {
        let names = |range: &[u8]| {
            let mut parts = range.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let is_named = parts
                .next()
                .is_some_and(|name| name.eq_ignore_ascii_case(b"application/openmetrics-text"));
            is_named && !parts.any(|part| matches!(part, b"q=0" | b"q=0.0" | b"version=0.0.1"))
        };
        match accept
            .split(|byte| *byte == b',')
            .any(|range| names(range.trim_ascii()))
        {
            true => ExpositionFormat::OpenMetrics,
            false => ExpositionFormat::Text,
        }
    }

    /// Its media type.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            ExpositionFormat::Text => "text/plain; version=0.0.4; charset=utf-8",
            ExpositionFormat::OpenMetrics => {
                "application/openmetrics-text; version=1.0.0; charset=utf-8"
            }
        }
    }
}

/// Writes metrics as text.
pub(super) struct MetricText {
    format: ExpositionFormat,
    out: Vec<u8>,
    family: &'static MetricFamily,
    /// The number of the worker group, if there are several: a label of every sample.
    group: Option<usize>,
    /// The labels of a histogram, which all of its lines share.
    labels: Vec<u8>,
}

/// Before the first family.
static NO_FAMILY: MetricFamily = MetricFamily::gauge("", "");

impl MetricText {
    /// An empty text in this format; `group` adds the label of a worker group to every sample.
    pub(super) fn new(format: ExpositionFormat, group: Option<usize>) -> MetricText {
        MetricText {
            format,
            group,
            out: Vec::with_capacity(64 * 1024),
            family: &NO_FAMILY,
            labels: Vec::new(),
        }
    }

    /// The text.
    pub(super) fn finish(mut self) -> Vec<u8> {
        if self.format == ExpositionFormat::OpenMetrics {
            self.out.extend_from_slice(b"# EOF\n");
        }
        self.out
    }

    /// A line, with `more` labels that are written already.
    fn line(&mut self, suffix: &str, labels: &[u8], more: (&str, &str), value: MetricValue) {
        self.out.extend_from_slice(self.family.name.as_bytes());
        self.out.extend_from_slice(suffix.as_bytes());
        let (name, text) = more;
        if !labels.is_empty() || !name.is_empty() {
            self.out.push(b'{');
            self.out.extend_from_slice(labels);
            if !name.is_empty() {
                if !labels.is_empty() {
                    self.out.push(b',');
                }
                self.out.extend_from_slice(name.as_bytes());
                self.out.extend_from_slice(b"=\"");
                self.out.extend_from_slice(text.as_bytes());
                self.out.push(b'"');
            }
            self.out.push(b'}');
        }
        self.out.push(b' ');
        match value {
            MetricValue::Count(number) => write_number(number, &mut self.out),
            MetricValue::Seconds(time) => {
                write_number(time.as_secs(), &mut self.out);
                self.out.push(b'.');
                write_padded(time.subsec_micros().into(), 6, &mut self.out);
            }
        }
        self.out.push(b'\n');
    }

    /// Writes the labels once for all lines of a sample, which a histogram has a dozen of.
    fn set_labels(&mut self, labels: &[MetricLabel<'_>]) {
        self.labels.clear();
        if let Some(group) = self.group {
            self.labels.extend_from_slice(b"worker_group=\"");
            write_number(group as u64, &mut self.labels);
            self.labels.push(b'"');
        }
        for (name, value) in labels {
            if !self.labels.is_empty() {
                self.labels.push(b',');
            }
            self.labels.extend_from_slice(name.as_bytes());
            self.labels.extend_from_slice(b"=\"");
            write_escaped(value, &mut self.labels);
            self.labels.push(b'"');
        }
    }
}

/// Joins the texts of several worker groups: all samples of a family must stand together, under one head. Every group
/// has the same families in the same order.
pub(super) fn join_families(texts: &[Vec<u8>]) -> Vec<u8> {
    let parts = |text: &[u8]| -> Vec<Vec<u8>> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            match parts.last_mut() {
                Some(part) if !line.starts_with(b"# TYPE") && line != b"# EOF\n" => {
                    part.extend_from_slice(line);
                }
                _ => parts.push(line.to_vec()),
            }
        }
        parts
    };
    let head = |part: &[u8]| part.split(|byte| *byte == b'\n').next().map(<[u8]>::to_vec);
    let Some((own, others)) = texts.split_first() else {
        return Vec::new();
    };
    let others: Vec<_> = others.iter().map(|text| parts(text)).collect();
    let mut out = Vec::new();
    for part in parts(own) {
        out.extend_from_slice(&part);
        for other in &others {
            let same = other.iter().find(|other| head(other) == head(&part));
            let samples = same
                .into_iter()
                .flat_map(|other| other.split_inclusive(|byte| *byte == b'\n'))
                .filter(|line| !line.starts_with(b"#"));
            out.extend(samples.flatten());
        }
    }
    out
}

/// Appends the value of a label. It must be UTF-8, and a quote, a backslash or a line's end in it is escaped.
fn write_escaped(value: &[u8], out: &mut Vec<u8>) {
    let text = String::from_utf8_lossy(value);
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            _ => out.push(byte),
        }
    }
}

impl MetricSink for MetricText {
    fn family(&mut self, family: &'static MetricFamily) {
        // A family without samples is legal, and says that the server knows it: a dashboard finds its name.
        self.family = family;
        // OpenMetrics names a counter without the suffix of its samples.
        let suffix = match (family.kind, self.format) {
            (MetricKind::Counter, ExpositionFormat::Text) => "_total",
            _ => "",
        };
        let kind = match family.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        for (word, text) in [("TYPE", kind), ("HELP", family.help)] {
            for part in ["# ", word, " ", family.name, suffix, " ", text, "\n"] {
                self.out.extend_from_slice(part.as_bytes());
            }
        }
    }

    fn sample(&mut self, labels: &[MetricLabel<'_>], value: MetricValue) {
        self.set_labels(labels);
        let labels = std::mem::take(&mut self.labels);
        let suffix = match self.family.kind {
            MetricKind::Counter => "_total",
            MetricKind::Gauge | MetricKind::Histogram => "",
        };
        self.line(suffix, &labels, ("", ""), value);
        self.labels = labels;
    }

    fn histogram(&mut self, labels: &[MetricLabel<'_>], histogram: &HistogramTotals<'_>) {
        self.set_labels(labels);
        let labels = std::mem::take(&mut self.labels);
        let mut sum = 0;
        let bounds = histogram.bounds.iter().copied().chain(["+Inf"]);
        for (bound, count) in bounds.zip(histogram.counts) {
            sum += count;
            let value = MetricValue::Count(sum);
            self.line("_bucket", &labels, ("le", bound), value);
        }
        self.line("_count", &labels, ("", ""), MetricValue::Count(sum));
        let value = MetricValue::Seconds(histogram.sum);
        self.line("_sum", &labels, ("", ""), value);
        self.labels = labels;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_gets_what_it_prefers() {
        let rows = [
            ("", ExpositionFormat::Text),
            ("*/*", ExpositionFormat::Text),
            ("text/plain;version=0.0.4", ExpositionFormat::Text),
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1",
                ExpositionFormat::OpenMetrics,
            ),
            ("application/openmetrics-text; q=0", ExpositionFormat::Text),
        ];
        for (accept, format) in rows {
            assert_eq!(
                ExpositionFormat::accepted_by(accept.as_bytes()),
                format,
                "{accept}"
            );
        }
    }

    #[test]
    fn groups_are_joined_family_by_family() {
        let own = b"# TYPE a counter\n# HELP a A.\na 1\n# TYPE b gauge\nb 2\n# EOF\n";
        let other = b"# TYPE a counter\n# HELP a A.\na 3\n# TYPE b gauge\nb 4\n# EOF\n";
        let joined = join_families(&[own.to_vec(), other.to_vec()]);
        let expected = "# TYPE a counter\n# HELP a A.\na 1\na 3\n# TYPE b gauge\nb 2\nb 4\n# EOF\n";
        assert_eq!(String::from_utf8(joined), Ok(expected.to_owned()));
    }

    #[test]
    fn families_become_lines() {
        static REQUESTS: MetricFamily = MetricFamily::counter("x_requests", "Requests.");
        static TIMES: MetricFamily = MetricFamily::histogram("x_seconds", "Times.");
        let mut text = MetricText::new(ExpositionFormat::OpenMetrics, None);
        text.family(&REQUESTS);
        text.sample(&[("server", b"a\"b\\c\nd")], MetricValue::Count(3));
        text.family(&TIMES);
        text.histogram(
            &[],
            &HistogramTotals {
                bounds: &["0.5"],
                counts: &[1, 2],
                sum: std::time::Duration::from_millis(1500),
            },
        );
        let expected = "# TYPE x_requests counter\n# HELP x_requests Requests.\n\
                        x_requests_total{server=\"a\\\"b\\\\c\\nd\"} 3\n\
                        # TYPE x_seconds histogram\n# HELP x_seconds Times.\n\
                        x_seconds_bucket{le=\"0.5\"} 1\nx_seconds_bucket{le=\"+Inf\"} 3\n\
                        x_seconds_count 3\nx_seconds_sum 1.500000\n# EOF\n";
        assert_eq!(String::from_utf8(text.finish()), Ok(expected.to_owned()));
    }
}

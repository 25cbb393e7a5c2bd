//! Plots as SVG, drawn for a page that may be light or dark: all colours but the contenders' are the page's.

use std::fmt::Write as _;

use super::{Plot, number};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 260.0;
/// Room for the numbers at the axes: left, right, top, bottom.
const LEFT: f64 = 56.0;
const RIGHT: f64 = 28.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 34.0;

/// Weir is dark and strong; each of the others keeps its colour through the report.
const COLOURS: &[(&str, &str)] = &[
    ("weir", "#0b7a75"),
    ("nginx", "#e08a00"),
    ("haproxy", "#3b6fd4"),
    ("varnish", "#8a4fbf"),
    ("prefork", "#b03a2e"),
    ("event", "#d9675c"),
    ("worker", "#c2574b"),
    ("h2o", "#5a9e3d"),
];

/// The shades of contenders of one program: as it is, then dashed.
const DASHES: &[&str] = &["", "6 3", "2 3", "8 3 2 3"];

pub(super) fn svg(plot: &Plot) -> String {
    match plot {
        Plot::Latencies { title, curves } => {
            let names: Vec<&str> = curves.keys().map(String::as_str).collect();
            let axes = latencies(curves.values().map(Vec::as_slice));
            let lines = curves.values().map(|points| {
                let place = |&(percentile, value): &(f64, f64)| (rank(percentile), value);
                points.iter().map(place).collect()
            });
            figure(title, "ms", &names, &axes, lines)
        }
        Plot::Progress {
            title,
            unit,
            step_seconds,
            curves,
        } => {
            let names: Vec<&str> = curves.keys().map(String::as_str).collect();
            let steps = curves.values().map(Vec::len).max().unwrap_or(0);
            let most = curves.values().flatten().copied().fold(0.0, f64::max);
            let axes = Axes::linear(steps as f64 * step_seconds, most);
            let lines = curves.values().map(|values| {
                let place = |(at, value): (usize, &f64)| (at as f64 * step_seconds, *value);
                values.iter().enumerate().map(place).collect()
            });
            figure(title, unit, &names, &axes, lines)
        }
        Plot::Growth {
            title,
            unit,
            curves,
        } => {
            let names: Vec<&str> = curves.keys().map(String::as_str).collect();
            let points: Vec<(f64, f64)> = curves.values().flatten().copied().collect();
            let (axes, least) = growth(&points);
            let lines = curves.values().map(|points| {
                let place = |&(size, value): &(f64, f64)| ((size / least).log10(), value);
                points.iter().map(place).collect()
            });
            figure(title, unit, &names, &axes, lines)
        }
        Plot::Spread { title, bars } => spread(title, bars),
    }
}

/// Axes for values against sizes, and the least size.
fn growth(points: &[(f64, f64)]) -> (Axes, f64) {
    let mut sizes: Vec<f64> = points.iter().map(|(size, _)| size.max(1.0)).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let least = sizes.first().copied().unwrap_or(1.0);
    let (bottom, top, beside) = logarithmic(points.iter().map(|(_, value)| *value));
    let below = sizes
        .iter()
        .map(|size| ((size / least).log10(), number(*size)));
    let most = sizes.last().copied().unwrap_or(1.0);
    let axes = Axes {
        right: (most / least).log10().max(f64::MIN_POSITIVE),
        bottom,
        top,
        is_logarithmic: true,
        below: below.collect(),
        beside,
    };
    (axes, least)
}

/// What lies where.
struct Axes {
    right: f64,
    bottom: f64,
    top: f64,
    is_logarithmic: bool,
    /// Places on the lower axis, and what stands there.
    below: Vec<(f64, String)>,
    beside: Vec<f64>,
}

impl Axes {
    fn linear(right: f64, most: f64) -> Self {
        let step = step(right);
        let seconds = (0..).map(|n| f64::from(n) * step);
        let beside_step = self::step(most);
        Self {
            right: right.max(f64::MIN_POSITIVE),
            bottom: 0.0,
            top: most.max(f64::MIN_POSITIVE) * 1.05,
            is_logarithmic: false,
            below: seconds
                .take_while(|at| *at <= right)
                .map(|at| (at, format!("{} s", number(at))))
                .collect(),
            beside: (0..)
                .map(|n| f64::from(n) * beside_step)
                .take_while(|at| *at <= most * 1.05)
                .collect(),
        }
    }

    fn place(&self, (across, up): (f64, f64)) -> (f64, f64) {
        let up = match self.is_logarithmic {
            true => {
                let part = up.max(self.bottom).ln() - self.bottom.ln();
                part / (self.top.ln() - self.bottom.ln())
            }
            false => (up - self.bottom) / (self.top - self.bottom),
        };
        let x = LEFT + across / self.right * (WIDTH - LEFT - RIGHT);
        (x, HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM))
    }
}

/// Where a percentile stands: each nine as wide as the one before.
fn rank(percentile: f64) -> f64 {
    -(1.0 - percentile.min(99.99) / 100.0).log10()
}

fn latencies<'a>(curves: impl Iterator<Item = &'a [(f64, f64)]>) -> Axes {
    let points: Vec<(f64, f64)> = curves.flatten().copied().collect();
    let (bottom, top, beside) = logarithmic(points.iter().map(|(_, value)| *value));
    let furthest = points
        .iter()
        .map(|(percentile, _)| rank(*percentile))
        .fold(1.0, f64::max);
    let marks = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99];
    Axes {
        right: furthest,
        bottom,
        top,
        is_logarithmic: true,
        below: marks
            .into_iter()
            .filter(|mark| rank(*mark) <= furthest + 1e-9)
            .map(|mark| (rank(mark), format!("p{mark}")))
            .collect(),
        beside,
    }
}

/// The ends of a logarithmic axis for these values, and the places on it that get a number.
fn logarithmic(values: impl Iterator<Item = f64>) -> (f64, f64, Vec<f64>) {
    let values: Vec<f64> = values.filter(|value| *value > 0.0).collect();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    let (least, most) = match most > 0.0 {
        true => (least, most),
        false => (1.0, 10.0),
    };
    // Between the powers of ten half of one is a round number too.
    let steps: Vec<f64> = (-6..9)
        .flat_map(|power| [1.0, 2.0, 5.0].map(|times| times * 10f64.powi(power)))
        .collect();
    let below = steps.iter().rev().find(|step| **step < least * 0.95);
    let above = steps.iter().find(|step| **step > most * 1.05);
    let bottom = below.copied().unwrap_or(least);
    let top = above.copied().unwrap_or(most).max(bottom * 10.0);
    let beside = steps
        .into_iter()
        .filter(|step| *step >= bottom && *step <= top * 1.001);
    (bottom, top, beside.collect())
}

/// A step of 1, 2 or 5 times a power of ten that divides an axis into some five parts.
fn step(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf((most / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
    steps
        .into_iter()
        .find(|step| most / step <= 6.0)
        .unwrap_or(power)
}

fn figure(
    title: &str,
    unit: &str,
    names: &[&str],
    axes: &Axes,
    lines: impl Iterator<Item = Vec<(f64, f64)>>,
) -> String {
    let mut svg = begin(title, HEIGHT);
    for value in &axes.beside {
        let (_, y) = axes.place((0.0, *value));
        let _ = write!(
            svg,
            "<line class=grid x1={LEFT} x2={} y1={y:.1} y2={y:.1} /><text x={} y={:.1} text-anchor=end>{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
            number(*value)
        );
    }
    for (at, text) in &axes.below {
        let (x, _) = axes.place((*at, axes.bottom));
        let _ = write!(
            svg,
            "<text x={x:.1} y={:.1} text-anchor=middle>{text}</text>",
            HEIGHT - BOTTOM + 16.0
        );
    }
    for (at, line) in lines.enumerate() {
        let mut path = String::new();
        for point in line {
            let (x, y) = axes.place(point);
            let _ = write!(path, "{x:.1},{y:.1} ");
        }
        let (colour, dash) = look(names, at);
        let _ = write!(
            svg,
            "<polyline points=\"{}\" fill=none stroke=\"{colour}\" stroke-width=2 stroke-dasharray=\"{dash}\" />",
            path.trim_end()
        );
    }
    svg.push_str("</svg>");
    format!(
        "<figure><figcaption>{} <span class=unit>{}</span></figcaption>{svg}{}</figure>",
        escaped(title),
        escaped(unit),
        legend(names)
    )
}

fn begin(title: &str, height: f64) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=img aria-label=\"{}\">",
        escaped(title)
    )
}

/// The colour and the dashes of the contender at this place.
fn look(names: &[&str], at: usize) -> (&'static str, &'static str) {
    let program = |name: &str| {
        let name = name.to_lowercase();
        COLOURS.iter().position(|(known, _)| name.contains(known))
    };
    let ours = program(names[at]);
    let before = names[..at]
        .iter()
        .filter(|name| program(name) == ours)
        .count();
    let colour = ours.map_or("#777", |at| COLOURS[at].1);
    (colour, DASHES[before % DASHES.len()])
}

fn legend(names: &[&str]) -> String {
    let entries = names.iter().enumerate().map(|(at, name)| {
        let (colour, dash) = look(names, at);
        format!(
            "<span><svg viewBox=\"0 0 24 8\" width=24 height=8><line x1=0 x2=24 y1=4 y2=4 stroke=\"{colour}\" stroke-width=3 stroke-dasharray=\"{dash}\" /></svg> {}</span>",
            escaped(name)
        )
    });
    format!("<div class=legend>{}</div>", entries.collect::<String>())
}

/// A line of boxes for each contender: as wide as the share of each worker.
fn spread(title: &str, bars: &[(String, Vec<f64>)]) -> String {
    let height = 26.0 * bars.len() as f64 + 8.0;
    let mut svg = begin(title, height);
    let names: Vec<&str> = bars.iter().map(|(name, _)| name.as_str()).collect();
    let left = 190.0;
    for (at, (name, shares)) in bars.iter().enumerate() {
        let y = 4.0 + 26.0 * at as f64;
        let total: f64 = shares.iter().sum();
        let (colour, _) = look(&names, at);
        let _ = write!(
            svg,
            "<text x={} y={:.1} text-anchor=end>{}</text>",
            left - 8.0,
            y + 15.0,
            escaped(name)
        );
        let mut x = left;
        for share in shares {
            let width = share / total.max(1.0) * (WIDTH - left - RIGHT);
            let _ = write!(
                svg,
                "<rect class=share x={x:.1} y={y:.1} width={width:.1} height=20 fill=\"{colour}\" />"
            );
            if width > 28.0 {
                let _ = write!(
                    svg,
                    "<text class=inside x={:.1} y={:.1} text-anchor=middle>{}</text>",
                    x + width / 2.0,
                    y + 15.0,
                    number(*share)
                );
            }
            x += width;
        }
    }
    svg.push_str("</svg>");
    format!(
        "<figure><figcaption>{}</figcaption>{svg}</figure>",
        escaped(title)
    )
}

/// Text for HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_a_handful_of_round_steps() {
        assert_eq!(step(10.0), 2.0);
        assert_eq!(step(700.0), 200.0);
        assert_eq!(step(0.0), 1.0);
    }

    #[test]
    fn a_nine_is_as_wide_as_the_one_before() {
        assert!((rank(99.0) - rank(90.0) - (rank(90.0) - rank(0.0))).abs() < 1e-9);
    }

    #[test]
    fn nothing_measured_is_drawn_as_nothing() {
        let plot = Plot::Latencies {
            title: "a < b".into(),
            curves: [("weir".to_owned(), Vec::new())].into(),
        };
        let svg = svg(&plot);
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN"), "{svg}");
    }
}

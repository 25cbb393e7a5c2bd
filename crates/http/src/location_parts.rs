//! What a location is frozen into, made once for all that are alike: its pipeline, the engine's settings, the structs
//! of modules. A configuration may have hundreds of thousands of locations.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use base::number_map::NumberHasher;
use conf::{BlockConfs, ConfSets};

use crate::core::{DeliveryConf, LocationConf};
use crate::http_site::{HandlerPipeline, HttpPhaseHandlers, Location};
use crate::module::{ContentHandler, HttpModule, HttpPhase, PhaseHandler, ResponseFilter};

/// Identifies a pipeline: the addresses of its handlers with their phases, and those of its filters.
type PipelineKey = (Vec<(HttpPhase, usize)>, Vec<usize>);

/// What equal locations share. A configuration may have hundreds of thousands of locations, most of which differ in one
/// setting.
#[derive(Default)]
pub(crate) struct LocationParts {
    pipelines: HashMap<PipelineKey, Arc<HandlerPipeline>, BuildHasherDefault<NumberHasher>>,
    /// Modules' structs.
    pub(crate) confs: ConfSets,
    /// The engine's settings, by the addresses of the two structs that they are made of, which live as long as the
    /// locations do.
    cores: HashMap<(usize, usize), Arc<LocationConf>, BuildHasherDefault<NumberHasher>>,
}

impl LocationParts {
    /// The engine's settings of a block. A block that changes none of them shares those of the block around it.
    pub(crate) fn core(&mut self, confs: &BlockConfs) -> Arc<LocationConf> {
        let (Some(core), Some(delivery)) =
            (confs.get::<LocationConf>(), confs.get::<DeliveryConf>())
        else {
            return Arc::default();
        };
        let key = (
            std::ptr::from_ref(core).addr(),
            std::ptr::from_ref(delivery).addr(),
        );
        let whole = self.cores.entry(key).or_insert_with(|| {
            Arc::new(LocationConf {
                delivery: delivery.clone(),
                ..core.clone()
            })
        });
        Arc::clone(whole)
    }

    /// The pipeline of these handlers and filters. Locations with the same ones share it.
    fn pipeline(
        &mut self,
        handlers: Vec<(HttpPhase, PhaseHandler)>,
        filters: Vec<(&'static str, ResponseFilter)>,
        // Both follow from the filters.
        (identifies_content, member_filters): (bool, Vec<ResponseFilter>),
    ) -> Arc<HandlerPipeline> {
        // Equal lists are shared: most locations of a configuration run the same handlers.
        let addresses = handlers
            .iter()
            .map(|(phase, handler)| (*phase, *handler as usize));
        let key = (
            addresses.collect(),
            filters.iter().map(|(_, filter)| *filter as usize).collect(),
        );
        let pipeline = self.pipelines.entry(key).or_insert_with(|| {
            Arc::new(HandlerPipeline {
                phases: HttpPhaseHandlers::collect(handlers.into_iter()),
                filters: filters.into(),
                member_filters: member_filters.into(),
                identifies_content,
            })
        });
        Arc::clone(pipeline)
    }
}

/// Collects the handlers and filters that run in a location; returns the modules that run in its phase `Rewrite`.
/// `named` is the content handler that a directive of the block chose, `inside` the modules that run in that phase of
/// its `if` blocks.
pub(crate) fn collect_pipeline(
    location: &mut Location,
    modules: &'static [&'static HttpModule],
    named: Option<&'static ContentHandler>,
    inside: &[&'static str],
    parts: &mut LocationParts,
) -> Vec<&'static str> {
    let active: Vec<&HttpModule> = modules
        .iter()
        .copied()
        .filter(|module| (module.enabled)(location))
        .collect();
    let answers: Vec<&ContentHandler> = modules
        .iter()
        .filter_map(|module| module.content_handler.as_ref())
        .filter(|answer| (answer.when)(location))
        .collect();
    // The handler that was named, if the settings confirm it; an inherited one otherwise.
    let answer = named
        .filter(|answer| (answer.when)(location))
        .or(answers.first().copied());
    let mut handlers: Vec<(HttpPhase, PhaseHandler)> = Vec::new();
    let mut rewriters = Vec::new();
    // First, since those of the phase answer only what it declines.
    handlers.extend(answer.map(|answer| (HttpPhase::Content, answer.handler)));
    // Both lists are in the order of the modules, which is the order in which handlers run.
    let mut next = active.iter().peekable();
    for module in modules {
        let is_active = next.next_if(|active| active.name == module.name).is_some();
        let rewrites = is_active || inside.contains(&module.name);
        let phases = module.phases.iter().copied();
        let runs = phases.filter(|(phase, _)| match phase {
            HttpPhase::Rewrite => rewrites,
            // `proxy_pass` and its like replace all other content handlers of a location, as in nginx.
            HttpPhase::Content => is_active && answer.is_none_or(|answer| answer.declines),
            _ => is_active,
        });
        let before = handlers.len();
        handlers.extend(runs);
        let is_one = |(phase, _): &(HttpPhase, PhaseHandler)| matches!(phase, HttpPhase::Rewrite);
        if handlers[before..].iter().any(is_one) {
            rewriters.push(module.name);
        }
    }
    if answer.is_some() {
        // Whether the slash is added depends on any such directive in the location, not on the one that answers.
        location.adds_slash =
            answers.iter().any(|answer| answer.adds_slash) && location.name.ends_with(b"/");
    }
    let filters = active
        .iter()
        .filter_map(|module| Some((module.name, module.filter?)));
    // It follows from the filters, which the key of a shared pipeline names.
    let identifies_content = active
        .iter()
        .any(|module| module.filter.is_some() && module.identifies_content);
    let member_filters = active
        .iter()
        .filter(|module| module.filters_for_members)
        .filter_map(|module| module.filter);
    let follows = (identifies_content, member_filters.collect());
    location.pipeline = parts.pipeline(handlers, filters.collect(), follows);
    rewriters
}

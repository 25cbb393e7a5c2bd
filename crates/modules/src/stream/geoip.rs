//! `geoip_country`, `geoip_city`, `geoip_org` in stream: variables from MaxMind's old databases, by the client's address. The
//! implementation is [`crate::shared::geoip`].
//!
//! ```nginx
//! geoip_country /usr/share/GeoIP/GeoIP.dat;
//! ```

use ::stream::{StreamModule, StreamSession};
use conf::{Directive, DirectiveTable, STREAM, Variable};

use crate::shared::client_scope::VariableOnly;
use crate::shared::geoip;

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "geoip",
    doc: "Variables from databases in MaxMind's old format, by client address.",
    main: &DIRECTIVES,
    variables: &VARIABLES,
    ..StreamModule::EMPTY
};

static VARIABLES: [Variable<StreamSession>; 16] = geoip::variables();

static ROWS: [Directive<VariableOnly>; 3] = geoip::rows::<_, StreamSession>(STREAM);

static DIRECTIVES: DirectiveTable<VariableOnly> = DirectiveTable::new(&ROWS);

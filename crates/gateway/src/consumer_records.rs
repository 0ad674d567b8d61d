//! The records of consumers: in the table that was loaded, or looked up in the store.
//!
//! The one place that finds the consumer of a name or a key for a request. With consumers in a
//! store the answer may take a wait; it is then the table of this one consumer, so that all else is
//! the same.

use std::{ops::Deref, sync::Arc};

use arc_swap::Guard;
use tidegate_access::auth::{ConsumerQuery, ConsumerTable, certified, is_consumer_name};
use tidegate_access::consumer_store::{ConsumerLookup, LookupFailed, PendingLookup};
use tidegate_identity::{Consumer, OwnedConsumer};

use super::{authenticator::Authenticator, rules::WorkerRules};

/// The table in which a consumer is, if there is such a consumer.
pub(super) enum ConsumerRecords {
    /// All consumers.
    Loaded(Guard<Arc<ConsumerTable>>),
    /// One from the store.
    Stored(Arc<ConsumerTable>),
}

/// Records that are known, or are being read.
pub(super) enum RecordsLookup {
    Known(ConsumerRecords),
    Pending(PendingLookup),
}

impl Deref for ConsumerRecords {
    type Target = ConsumerTable;

    #[inline]
    fn deref(&self) -> &ConsumerTable {
        match self {
            Self::Loaded(table) => table,
            Self::Stored(table) => table,
        }
    }
}

impl Authenticator {
    /// The records that answer `query`.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub(super) fn records_of(
        &self,
        rules: &WorkerRules,
        query: ConsumerQuery<'_>,
    ) -> Result<RecordsLookup, LookupFailed> {
        let loaded = rules.consumers();
        // No record has such a name, and none is needed to refuse it.
        let is_usable = !matches!(query, ConsumerQuery::Name(name) if !is_consumer_name(name));
        if !loaded.is_in_store() || !is_usable {
            return Ok(RecordsLookup::Known(ConsumerRecords::Loaded(loaded)));
        }
        let store = self.shared.consumer_store.as_ref().ok_or(LookupFailed)?;
        Ok(match store.look_up(query)? {
            ConsumerLookup::Known(table) => RecordsLookup::Known(ConsumerRecords::Stored(table)),
            ConsumerLookup::Pending(pending) => RecordsLookup::Pending(pending),
        })
    }

    /// Waits for records.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub(super) async fn wait_for_records(
        &self,
        pending: PendingLookup,
    ) -> Result<ConsumerRecords, LookupFailed> {
        let store = self.shared.consumer_store.as_ref().ok_or(LookupFailed)?;
        store.wait(pending).await.map(ConsumerRecords::Stored)
    }
}

impl ConsumerRecords {
    /// The consumer called `name`, which needs no credentials and no record; `None` if it is
    /// disabled. `plan` is the one of a consumer without a plan in its record.
    pub(super) fn consumer(
        &self,
        rules: &WorkerRules,
        name: &str,
        plan: Option<&str>,
    ) -> Option<OwnedConsumer> {
        let consumer = self.with_known_plan(rules, certified(name, self)?);
        Some(Consumer { plan: consumer.plan.or(plan), ..consumer }.into())
    }

    /// The consumer that a signed token names, with the plan and the billing day of its record;
    /// `None` if it is disabled.
    pub(super) fn with_record(
        &self,
        rules: &WorkerRules,
        consumer: OwnedConsumer,
    ) -> Option<OwnedConsumer> {
        let record = self.with_known_plan(rules, certified(consumer.view().name, self)?);
        let billing_day = record.billing_day;
        let planned = record.plan.map(|plan| consumer.with_plan(plan));
        Some(planned.unwrap_or(consumer).with_billing_day(billing_day))
    }

    /// The consumer without a plan that the configuration lacks. A record in a file has none of
    /// these.
    #[inline]
    pub(super) fn with_known_plan<'c>(
        &self,
        rules: &WorkerRules,
        consumer: Consumer<'c>,
    ) -> Consumer<'c> {
        match self {
            Self::Loaded(_) => consumer,
            Self::Stored(_) => {
                let loaded = rules.consumers();
                Consumer { plan: consumer.plan.filter(|plan| loaded.has_plan(plan)), ..consumer }
            }
        }
    }
}

-- Purchases: the business clock, contacts (personal data, outside the log), and the read models.

-- The business clock: deadlines of purchases are judged by it, leases never. Only tests and demos move it, and only forward.
CREATE TABLE finaz.business_clock (
    singleton boolean NOT NULL DEFAULT true,
    ahead interval NOT NULL DEFAULT interval '0',
    CONSTRAINT business_clock_pkey PRIMARY KEY (singleton),
    CONSTRAINT business_clock_singleton_check CHECK (singleton),
    CONSTRAINT business_clock_ahead_check CHECK (ahead >= interval '0')
);
INSERT INTO finaz.business_clock DEFAULT VALUES;

CREATE FUNCTION finaz.business_now() RETURNS timestamptz
    LANGUAGE sql VOLATILE
    SET search_path = finaz, pg_catalog, pg_temp
    AS $$ SELECT clock_timestamp() + coalesce((SELECT c.ahead FROM finaz.business_clock AS c), interval '0') $$;

-- Mail addresses by reference. The log holds the reference only, so erasing the address here erases it for good.
CREATE TABLE finaz.contacts (
    contact_id text COLLATE "C" NOT NULL,
    purchase_id text COLLATE "C" NOT NULL,
    address text,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    erased_at timestamptz,
    CONSTRAINT contacts_pkey PRIMARY KEY (contact_id),
    CONSTRAINT contacts_erased_check CHECK ((address IS NULL) = (erased_at IS NOT NULL))
);
CREATE INDEX contacts_address_idx ON finaz.contacts (lower(address)) WHERE address IS NOT NULL;
CREATE INDEX contacts_made_at_idx ON finaz.contacts (made_at);

CREATE TABLE finaz.shows_generations (
    generation integer NOT NULL,
    show_id text COLLATE "C" NOT NULL,
    title text NOT NULL,
    starts_at timestamptz NOT NULL,
    currency text COLLATE "C" NOT NULL,
    seat_count integer NOT NULL,
    hold_seconds integer NOT NULL,
    first_position bigint NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT shows_pkey PRIMARY KEY (generation, show_id)
) PARTITION BY LIST (generation);
CREATE INDEX shows_first_position_idx ON finaz.shows_generations (first_position);

CREATE TABLE finaz.availability_generations (
    generation integer NOT NULL,
    show_id text COLLATE "C" NOT NULL,
    seat text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    price_minor bigint NOT NULL,
    currency text COLLATE "C" NOT NULL,
    purchase_id text COLLATE "C" NOT NULL,
    first_position bigint NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT availability_pkey PRIMARY KEY (generation, show_id, seat)
) PARTITION BY LIST (generation);

CREATE TABLE finaz.purchases_generations (
    generation integer NOT NULL,
    purchase_id text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    principal text COLLATE "C" NOT NULL,
    show_id text COLLATE "C" NOT NULL,
    seats text[] COLLATE "C" NOT NULL,
    amount_minor bigint NOT NULL,
    currency text COLLATE "C" NOT NULL,
    alerts text[] COLLATE "C" NOT NULL,
    state_since timestamptz NOT NULL,
    started_at timestamptz NOT NULL,
    first_position bigint NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT purchases_pkey PRIMARY KEY (generation, purchase_id)
) PARTITION BY LIST (generation);
CREATE INDEX purchases_first_position_idx ON finaz.purchases_generations (first_position);
CREATE INDEX purchases_principal_idx ON finaz.purchases_generations (principal, first_position);
CREATE INDEX purchases_open_idx ON finaz.purchases_generations (state_since) WHERE state NOT IN ('CONFIRMED', 'COMPENSATED');

CREATE TABLE finaz.balances_generations (
    generation integer NOT NULL,
    currency text COLLATE "C" NOT NULL,
    accounts json NOT NULL,
    charges bigint NOT NULL,
    refunds bigint NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT balances_pkey PRIMARY KEY (generation, currency)
) PARTITION BY LIST (generation);

CREATE TABLE finaz.sales_per_day_generations (
    generation integer NOT NULL,
    day date NOT NULL,
    show_id text COLLATE "C" NOT NULL,
    currency text COLLATE "C" NOT NULL,
    purchases bigint NOT NULL,
    seats bigint NOT NULL,
    revenue_minor bigint NOT NULL,
    cancelled bigint NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT sales_per_day_pkey PRIMARY KEY (generation, day, show_id, currency)
) PARTITION BY LIST (generation);

CREATE TABLE finaz.shows_g1 PARTITION OF finaz.shows_generations FOR VALUES IN (1);
CREATE TABLE finaz.availability_g1 PARTITION OF finaz.availability_generations FOR VALUES IN (1)
    WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
CREATE TABLE finaz.purchases_g1 PARTITION OF finaz.purchases_generations FOR VALUES IN (1)
    WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
CREATE TABLE finaz.balances_g1 PARTITION OF finaz.balances_generations FOR VALUES IN (1);
CREATE TABLE finaz.sales_per_day_g1 PARTITION OF finaz.sales_per_day_generations FOR VALUES IN (1);

INSERT INTO finaz.projections (name, generation, role) VALUES
    ('shows', 1, 'active'), ('availability', 1, 'active'), ('purchases', 1, 'active'), ('balances', 1, 'active'),
    ('sales_per_day', 1, 'active'), ('payment', 1, 'active'), ('purchase_mail', 1, 'active');

CREATE VIEW finaz.shows AS
    SELECT * FROM finaz.shows_generations
    WHERE generation = (SELECT generation FROM finaz.projections WHERE name = 'shows' AND role = 'active');
CREATE VIEW finaz.availability AS
    SELECT * FROM finaz.availability_generations
    WHERE generation = (SELECT generation FROM finaz.projections WHERE name = 'availability' AND role = 'active');
CREATE VIEW finaz.purchases AS
    SELECT * FROM finaz.purchases_generations
    WHERE generation = (SELECT generation FROM finaz.projections WHERE name = 'purchases' AND role = 'active');
CREATE VIEW finaz.balances AS
    SELECT * FROM finaz.balances_generations
    WHERE generation = (SELECT generation FROM finaz.projections WHERE name = 'balances' AND role = 'active');
CREATE VIEW finaz.sales_per_day AS
    SELECT * FROM finaz.sales_per_day_generations
    WHERE generation = (SELECT generation FROM finaz.projections WHERE name = 'sales_per_day' AND role = 'active');

-- The database's own defaults of time zone and formats change nothing.
DO $$ BEGIN
	EXECUTE format('ALTER DATABASE %I SET TimeZone = ''Asia/Kathmandu''', current_database());
	EXECUTE format('ALTER DATABASE %I SET DateStyle = ''German''', current_database());
	EXECUTE format('ALTER DATABASE %I SET IntervalStyle = ''iso_8601''', current_database());
	EXECUTE format('ALTER DATABASE %I SET bytea_output = ''escape''', current_database());
	EXECUTE format('ALTER DATABASE %I SET extra_float_digits = -10', current_database());
	EXECUTE format('ALTER DATABASE %I SET search_path = ''pg_catalog''', current_database());
	EXECUTE format('ALTER DATABASE %I SET statement_timeout = ''20s''', current_database());
END $$;
CREATE TABLE public.defaults (id int PRIMARY KEY, tz timestamptz, d date, i interval, b bytea, f float8, ttz timetz, r tstzrange, l timestamptz[]);

// Package connectortest holds what every connector is tested with: the suites that a source and a sink must pass
// ([RunSource], [RunSink]), and a source and a sink in memory ([MemorySource], [MemorySink]) that show the engine every
// order of events a real system can produce, with switches for faults and crashes ([Faults]).
package connectortest

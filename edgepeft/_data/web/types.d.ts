// What lies beside the worker in a site, and elsewhere here.
declare module "*/ort.mjs";
declare module "*/tokenizers.mjs";
declare module "*/module/bundle.js";
declare module "*/module/bench.js";
declare module "*/module/tuning.js";

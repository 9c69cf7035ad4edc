// How the TypeScript client is made.
export default {
  input: "openapi.json",
  output: { path: "statehold_client", module: { extension: ".js" } },
  plugins: ["@hey-api/client-fetch", "@hey-api/typescript", "@hey-api/sdk"],
};
